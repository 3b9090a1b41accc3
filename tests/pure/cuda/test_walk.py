"""A first call's walk to a kernel on a GPU: docs/architecture.md draws it."""

from cuda_fakes import OK, on_ranks
from tests.pure.cuda.test_fused_launches import Tensor
from tests.walks import returns, walk_of

from stretto.arrays import array_readers
from stretto.executors.cuda.codegen import compile as compiler
from stretto.runtime.calls import Communicator


class Readable(Tensor):
    """A tensor that reads as PyTorch's own."""

    is_cuda, device = True, "cuda:0"

    @property
    def nbytes(self):
        return self.numel() * self.element_size()

    def is_conj(self):
        return False

    is_neg = is_conj


def test_a_first_call_returns_to_few_modules_that_it_has_left(fake, monkeypatch):
    """Its kernel is written, compiled and loaded on the way; it was 51 at first."""
    monkeypatch.setitem(array_readers._readers, Readable, array_readers._tensor)
    monkeypatch.setattr(compiler, "compile_kernel", lambda kernel, arch: b"")
    for name, answer in {
        "cuModuleLoadData": (OK, 1),
        "cuModuleGetFunction": (OK, 2),
        "cuFuncLoad": (OK,),
        "cuModuleUnload": (OK,),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": (OK, 80),
    }.items():
        setattr(fake, name, lambda *args, answer=answer: answer)
    walks = []

    def work(group):
        comm = Communicator(group, executor="cuda")
        x = Readable(1 << 20, (2, 512), "float32")
        y = Readable(1 << 21, (2, 510), "float32")
        if group.rank == 0:
            comm.all_reduce(x, stream=5)  # chooses for its size
            walks.append(walk_of(lambda: comm.all_reduce(y, stream=5)))
        group.exchange({})

    on_ranks(fake, 2, work)

    assert returns(walks[0]) <= 12, walks[0]
