"""One rank of gpu_serving.py: fused kernels back to back, and after somebody's own.

A case is "rows hidden". Three graphs of ten calls are timed for each variant: the calls
alone; each after an elementwise kernel of torch that writes its input; and the same
where launches of ours may not begin before that kernel ends. What the elementwise
kernel takes by itself is timed like a variant, `other`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from typing import Any

import torch
from gpu_fused_kernels import call_of
from gpu_fused_worker import EPS, Norm, triton_norm
from gpu_serving_kernels import tried
from gpu_worker import Ours, Worker

CALLS = 10
HANDLE = 64
"""Bytes of a handle of shared memory."""


@functools.cache
def norm_for(rank: int, ranks: int, rows: int, hidden: int) -> Norm:
    """Return the arrays of a case, the same for all variants."""
    return Norm(rank, ranks, rows, hidden)


class Serving(Worker):
    """`prepare` and `time` of every variant."""

    exact = False

    def input_of(self, norm: Norm) -> Any:
        """Return the array that calls reduce."""
        raise NotImplementedError

    def built(self, norm: Norm, x: Any, variant: str) -> Any:
        """Return a function that enqueues everything."""
        raise NotImplementedError

    def strict(self) -> Any:
        """Return a context in which launches do not begin with the kernel before."""
        raise NotImplementedError

    def prepare(self: Any, rows: int, hidden: int, variant: str) -> Any:
        """Check a variant in three ways, and capture what is timed."""
        norm = norm_for(self.rank, self.ranks, rows, hidden)
        x = self.input_of(norm)
        mine = norm.drawn(self.rank)

        def other() -> None:
            torch.mul(mine, 1.0, out=x)

        call = (lambda: None) if variant == "other" else self.built(norm, x, variant)

        def after() -> None:
            other()
            call()

        key, checksum = f"{rows} {hidden} {variant}", 0
        if variant == "other":
            self.kept[key] = ({"alone": self.capture(other, CALLS)}, mine)
            return {"wrong": "", "checksum": 0}
        wrong = ""
        for way in ("eager", "replayed", "after", "after strictly"):
            self.poison(norm, x)
            if not way.startswith("after"):
                x.copy_(mine)
            graph = None
            if way == "replayed":
                graph = self.capture(call, 1)
            elif way == "after":
                graph = self.capture(after, 1)
            elif way != "eager":
                with self.strict():
                    graph = self.capture(after, 1)
            self.settle()
            (call if graph is None else graph.replay)()
            self.settle()
            said = norm.differs() if self.exact else norm.error()
            if said:
                wrong += f"{way}: {said}; "
        checksum = int(norm.out.view(torch.int16).sum(dtype=torch.int64).item())
        graphs = {
            "alone": self.capture(call, CALLS),
            "after": self.capture(after, CALLS),
        }
        with self.strict():
            graphs["strictly"] = self.capture(after, CALLS)
        self.kept[key] = (graphs, (call, norm, mine))
        return {"wrong": wrong, "checksum": checksum, "loose": self.loose()}

    def loose(self) -> int:
        """Return how many launches began with the kernel before them."""
        return 0

    def poison(self, norm: Norm, x: Any) -> None:
        """Give everything its first values, but for the input."""
        x.view(torch.int16).fill_(0x7FA5)
        norm.residual.copy_(norm.drawn(8_000))
        norm.out.view(torch.int16).fill_(0x7FA5)

    def time(self: Any, rows: int, hidden: int, variant: str, replays: int) -> Any:
        """Return microseconds a call of each graph."""
        graphs, _ = self.kept[f"{rows} {hidden} {variant}"]
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        found = {}
        for name, graph in graphs.items():
            graph.replay()
            begin.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            self.settle()
            found[name] = begin.elapsed_time(end) * 1e3 / (replays * CALLS)
        return found

    def issue(self: Any, rows: int, hidden: int, variant: str) -> Any:
        """Return microseconds to enqueue a call from Python, and to run it."""
        call = self.kept[f"{rows} {hidden} {variant}"][1][0]
        found = {}
        for name in ("issue", "issue strictly"):
            with self.strict() if "strictly" in name else _Nothing():
                for _ in range(50):
                    call()
                self.settle()
                began = time.perf_counter()
                for _ in range(1000):
                    call()
                found[name] = (time.perf_counter() - began) * 1e3
                self.settle()
        return found


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Strict:
    """No launch begins with the kernel before it, while this is held."""

    def __init__(self, capture: Any) -> None:
        self._capture = capture

    def __enter__(self) -> None:
        self._capture.loosen = lambda _: False

    def __exit__(self, *_: object) -> None:
        del self._capture.loosen


class ServingOurs(Serving, Ours):
    """One kernel, whose outputs have the bits of the reference."""

    exact = True

    def input_of(self, norm: Norm) -> Any:
        """Return an array that nobody registered."""
        return self.registered[0][: norm.out.numel()].view(norm.shape)

    def built(self, norm: Norm, x: Any, variant: str) -> Any:
        """Return the call."""
        y = self.registered[1][: norm.out.numel()].view(norm.shape)
        with tried(variant):
            plan = self._plan(variant)
            launch = self.session.prepare(plan, call_of(*norm.shape))
        extra = (norm.residual, norm.weight, EPS, norm.out, norm.residual)
        return lambda: launch(x, y, extra=extra)

    def strict(self) -> Any:
        """Return what holds back launches."""
        return _Strict(_capture())

    def loose(self) -> int:
        """Return how many launches began with the kernel before them."""
        return int(getattr(_capture(), "loosened", -1))

    def soak(self, rows: int, hidden: int, variant: str, replays: int) -> Any:
        """Replay a graph in which everybody's kernels wait for one another's arrays.

        Each call follows a kernel that writes its input, and is followed by one that
        overwrites its input and its residual: whoever began too early is found.
        """
        norm = norm_for(self.rank, self.ranks, rows, hidden)
        x, calls = self.input_of(norm), 6
        y = self.registered[1][: norm.out.numel()].view(norm.shape)
        with tried(variant):
            launch = self.session.prepare(self._plan(variant), call_of(rows, hidden))
        mine = [norm.drawn(100 * n + self.rank) for n in range(calls)]
        added = [norm.drawn(7_000 + n) for n in range(calls)]
        residual = torch.empty_like(norm.out)
        outs = [torch.empty_like(norm.out) for _ in range(2 * calls)]

        def one(n: int) -> None:
            torch.mul(mine[n], 1.0, out=x)
            torch.mul(added[n], 1.0, out=residual)
            launch(x, y, extra=(residual, norm.weight, EPS, *outs[2 * n : 2 * n + 2]))
            residual.fill_(float("nan"))
            x.fill_(float("nan"))

        for n in range(calls):
            one(n)
            self.settle()
        want = [out.clone() for out in outs]
        graph = self.capture(lambda: [one(n) for n in range(calls)], 1)
        wrong = 0
        for _ in range(replays):
            for out in outs:
                out.view(torch.int16).fill_(0x7FA5)
            graph.replay()
            same = [torch.equal(a, b) for a, b in zip(outs, want, strict=True)]
            wrong += not all(same)
        self.settle()
        return {"wrong": wrong}


def _capture() -> Any:
    from stretto.executors.cuda.device.driver import api
    from stretto.executors.cuda.launching.captured import capture_of

    return capture_of(api())


class ServingTheirs(Serving):
    """FlashInfer's fused kernel; vLLM's all_reduce, then a Triton norm."""

    def open(self, args: Any) -> None:
        """Share memory with the peers."""
        from gpu_group import ChildGroup

        self.lib = ctypes.CDLL(os.environ["STRETTO_SERVING_PEERS"])
        for name in ("serving_open", "serving_input"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.group = ChildGroup(args.rank, args.ranks, args.fd, deadline_s=20.0)
        slab, handle = ctypes.c_void_p(), ctypes.create_string_buffer(HANDLE)
        self._ask("serving_alloc", args.rank, ctypes.byref(slab), handle)
        said = self.group.exchange({"handle": handle.raw})
        slabs = (ctypes.c_void_p * args.ranks)()
        for rank, (payload, _) in enumerate(said):
            one = slab
            if rank != args.rank:
                one = ctypes.c_void_p()
                self._ask("serving_import", payload["handle"], ctypes.byref(one))
            slabs[rank] = one.value
        self.state = ctypes.c_void_p(
            self.lib.serving_open(args.rank, args.ranks, slabs)
        )
        assert self.state.value, "the state is made"
        self.shared = int(self.lib.serving_input(slab))
        self.group.exchange({})

    def _ask(self, name: str, *args: Any) -> None:
        error = getattr(self.lib, name)(*args)
        if error:
            raise RuntimeError(f"{name}: {error}")

    def input_of(self, norm: Norm) -> Any:
        """Return the shared input, which is the only one that vLLM's kernel reads."""
        return _Raw(self.shared, norm.shape).tensor()

    def strict(self) -> Any:
        """Return nothing: theirs have no such way."""
        return _Nothing()

    def built(self, norm: Norm, x: Any, variant: str) -> Any:
        """Return a call: `flashinfer early|late`, or `vllm BLOCKS WARPS`."""
        kind, *how = variant.split()
        rows, hidden = norm.shape
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in _all(norm, x)]
        given, residual, weight, out = pointers
        lib, stream = self.lib, ctypes.c_void_p(self.stream.cuda_stream)
        if kind == "flashinfer":
            tail = (rows, hidden, 1, int(how[0] == "late"), 1, stream)

            def fused() -> None:
                error = lib.serving_flashinfer(
                    self.state, given, residual, weight, out, ctypes.c_float(EPS), *tail
                )
                if error:
                    raise RuntimeError(f"flashinfer: {error}")

            return fused
        total = torch.empty_like(norm.out)
        to = ctypes.c_void_p(total.data_ptr())
        kernel, block = triton_norm(), 1 << (hidden - 1).bit_length()

        def two() -> None:
            error = lib.serving_vllm(
                self.state, to, rows, hidden, int(how[0]), 512, stream
            )
            if error:
                raise RuntimeError(f"vllm: {error}")
            kernel[(rows,)](
                total, norm.residual, norm.weight, norm.out, EPS, hidden, block,
                num_warps=int(how[1]),
            )  # fmt: skip

        return two


def _all(norm: Norm, x: Any) -> tuple[Any, ...]:
    return x, norm.residual, norm.weight, norm.out


class _Raw:
    """Device memory as torch sees it."""

    def __init__(self, address: int, shape: tuple[int, int]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": "<i2",
            "version": 3,
        }

    def tensor(self) -> Any:
        """Return it as bf16."""
        return torch.as_tensor(self, device="cuda").view(torch.bfloat16)


SERVING = {"serving_ours": ServingOurs, "serving_theirs": ServingTheirs}
