"""What people know from elsewhere is answered with what it is called here."""

import re

import pytest

import stretto
from stretto.errors import UnknownNameError
from stretto.program import algorithms
from stretto.program.collectives import Operator, dtype_name
from stretto.runtime.calls import Communicator
from stretto.runtime.calls.communicator import advise

ELSEWHERE = (
    *("size", "Get_size", "get_world_size", "world_size", "Get_rank", "ncclCommCount"),
    *(
        "bcast",
        "Bcast",
        "Allreduce",
        "allreduce",
        "iallreduce",
        "Ibarrier",
        "allReduce",
    ),
    *(
        "ncclAllGather",
        "Reduce_scatter_block",
        "reduce_scatter_tensor",
        "psum",
        "pmean",
    ),
    *("all_gather_into_tensor", "all_to_all_single", "Alltoallv", "isend", "Irecv"),
    *("Sendrecv", "ppermute", "broadcast_object_list", "new_group", "Split", "Dup"),
    *("Free", "Abort", "destroy_process_group", "monitored_barrier", "group_start"),
    *("all_recude", "brodcast", "regsiter"),
)
MODULE = (
    *("init_process_group", "init", "COMM_WORLD", "ReduceOp", "run", "all_reduce"),
    *("Bcast", "spwan", "nonsense"),
)
CALLS = (
    "broadcast(1, 0)",
    "broadcast(1, src=0)",
    "reduce(1, dst=0)",
    "reduce(1, 'sum', 0)",
    "gather(1, dest=0)",
    "scatter(1, 0)",
    "send(1, dst=1)",
    "recv(1, src=1)",
    "all_reduce(1, async_op=True)",
    "all_reduce(1, group=None)",
    "all_reduce(1, reduce_op='sum')",
    "all_reduce(tensor=1)",
    "all_gather(1, recvbuf=2)",
    "all_gather(1, 2)",
    "send(1, 1, tag=3)",
    "broadcast_async(1, src=0)",
)
WORDS = ("SUM", "mean", "ReduceOp.MAX", "logical_or", "product", "summe", "xyz")
TYPES = ("bf16", "torch.float16", "double", "fp8", "flot32")
ALGORITHMS = ("ring", "all_reduce/rign", "all_gather/swing", "reduce/nonsense")


@pytest.fixture
def comm():
    """A communicator that nobody has opened: what is asked for is not there anyway."""
    return Communicator.__new__(Communicator)


def said(ask, *args):
    """Return what is raised, and its notes."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the text is golden
        ask(*args)
    advise(raised.value)
    return "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


def unbound(text):
    """Return Python's words without what differs from version to version."""
    return re.sub(r"^\w+\.", "", text)


def test_names_from_elsewhere_are_answered_with_ours(comm, golden):
    """Of a communicator, of the package, operators, types, algorithms."""
    hints = {n: said(getattr, comm, n).rpartition("stretto: ")[2] for n in ELSEWHERE}
    names = [f"comm.{n}: {hint}" for n, hint in hints.items()]
    names += [f"stretto.{n}: {said(getattr, stretto, n)}" for n in MODULE]
    names += [f"op={w!r}: {said(Operator.named, w)}" for w in WORDS]
    names += [f"dtype={w!r}: {said(dtype_name, w)}" for w in TYPES]
    names += [f"algorithm={w!r}: {said(algorithms.get, w)}" for w in ALGORITHMS]

    golden("\n".join(names) + "\n")


def test_a_name_like_none_is_answered_with_all(comm):
    """Whatever a communicator may learn: the golden text above need not."""
    told = said(getattr, comm, "nonsense").rpartition("want ")[2].split(", ")

    assert {"all_reduce", "send", "split"} < set(told)
    assert told == sorted(name for name in dir(comm) if name in told)


def test_arguments_from_elsewhere_are_answered_with_ours(comm, golden):
    """Beside what Python says, in a note: where a with-block or a rank ends."""
    told = []
    for call in CALLS:
        text = said(eval, f"comm.{call}", {"comm": comm})
        told.append(f"comm.{call}: {text.rpartition(chr(10))[2]}")

    golden("\n".join(told) + "\n")


@pytest.mark.parametrize("name", ELSEWHERE[:-3])
def test_what_a_hint_names_is_there(comm, name):
    """A hint that names what there is not would be worse than none."""
    told = said(getattr, comm, name).rpartition("want ")[2]
    found = re.findall(r"(\w+)\(", told) or re.findall(r"\w+", told)[:1]

    for verb in found:
        assert hasattr(Communicator, verb) or verb in ("num_ranks", "rank")


def test_what_is_looked_for_is_still_said_to_be_missing(comm):
    """`hasattr` and `getattr` with a default are questions, not mistakes."""
    assert not hasattr(comm, "bcast")
    assert getattr(comm, "_private", None) is None
    assert not hasattr(stretto, "__wrapped__")


def test_other_peoples_errors_get_no_note(comm):
    """A function of theirs may have a parameter of that name."""

    def gather(x):
        return x

    assert "stretto:" not in said(lambda: gather(1, src=0))
    assert "stretto:" not in said(lambda: comm.all_reduce())


def test_a_list_of_what_is_known_is_complete():
    """The nearest first, then all others, once each."""
    with pytest.raises(UnknownNameError) as raised:
        Operator.named("mx")
    told = str(raised.value).partition("known: ")[2].split(", ")

    assert "max" == told[0]
    assert sorted(o.value for o in Operator) == sorted(told)


def test_a_communicators_attributes_are_found_fast():
    """A hook for names that there are not slows the look-up of those that there are."""
    hooks = ("__getattr__", "__getattribute__")
    assert not [
        (kind.__name__, hook)
        for kind in Communicator.__mro__[:-1]
        for hook in hooks
        if hook in vars(kind)
    ]
