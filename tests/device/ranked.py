"""A rank of the device checks: its process, its group, and plans bound to arrays."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
from gpu_group import ChildGroup  # noqa: E402

from stretto.compiler.lower import lower  # noqa: E402
from stretto.compiler.plan import Schedule  # noqa: E402
from stretto.compiler.verify import verify, verify_plan  # noqa: E402
from stretto.executors import Call  # noqa: E402
from stretto.program import algorithms, collectives  # noqa: E402
from stretto.program.collectives import Operator, Shape, storage  # noqa: E402
from stretto.testing import draw, input_counts, interpret, output_counts  # noqa: E402

__all__ = ["CHECKS", "DEADLINE_S", "Bound", "CheckGroup", "Rank", "check", "verdict"]

CHECKS: dict[str, tuple[Check, float]] = {}
"""Every check, and for how many seconds it may last, by its name."""
DEADLINE_S = 2.0

Check = Callable[["Rank"], Any]


def check(seconds: float) -> Callable[[Check], Check]:
    """Register a check under its name; it is begun when there is so much time."""

    def register(function: Check) -> Check:
        CHECKS[function.__name__] = function, seconds
        return function

    return register


class Bound:
    """A prepared plan with arrays for it, and what must come out."""

    def __init__(
        self,
        rank: Rank,
        name: str,
        schedule: str,
        count: int,
        dtype: str = "bfloat16",
        *,
        askew: bool = False,
    ) -> None:
        """With `askew`, arrays begin an element late: all of them in zero-copy."""
        n = rank.n
        self.rank, self.dtype = rank, dtype
        params: dict[str, object] = {}
        if name.startswith("permute/"):
            params = {"pairs": tuple((r, (r + 1) % n) for r in range(n))}
        self.program = algorithms.get(name).build(n, **params)
        kind = collectives.get(self.program.collective)
        shape = Shape(num_ranks=n, split=self.program.split, params=self.program.params)
        self.counts = tuple([count] * kind.num_parts(shape))
        parsed = Schedule.parse(schedule)
        plan = verify_plan(lower(verify(self.program), parsed))
        call = Call(dtype=dtype, op=Operator.SUM, counts=self.counts)
        self.launch = rank.session.prepare(plan, call)
        self.n_in = input_counts(self.program, self.counts)
        self.n_out = output_counts(self.program, self.counts)
        itemsize = storage(dtype).itemsize
        zero_copy = parsed.memory == "zero_copy"
        most = max(1, *self.n_in, *self.n_out) * itemsize
        mine_in, mine_out = self.n_in[rank.rank], self.n_out[rank.rank]
        late = itemsize * (askew and (zero_copy or rank.rank % 2))
        both = rank.bytes(most + late, zero_copy), rank.bytes(most + late, zero_copy)
        self.whole = both[0][late:], both[1][late:]
        self.x = self.whole[0][: mine_in * itemsize]
        self.out = self.whole[1][: mine_out * itemsize]

    def fill(self, seed: int) -> list[Any]:
        """Write fresh data and poison; return every rank's due output."""
        torch = self.rank.torch
        given = [
            draw(np.random.default_rng((seed, q)), c, self.dtype, Operator.SUM)
            for q, c in enumerate(self.n_in)
        ]
        mine = np.ascontiguousarray(given[self.rank.rank]).view(np.uint8)
        self.x.copy_(torch.from_numpy(mine.copy()))
        self.out.fill_(0xA5)
        return interpret(self.program, given, dtype=self.dtype, counts=self.counts)

    def wrong(self, want: Sequence[Any]) -> str:
        """Return how the output differs from what is due, or nothing."""
        got = self.out.cpu().numpy()
        due = np.ascontiguousarray(want[self.rank.rank]).view(np.uint8)
        bad = np.flatnonzero(got != due)
        if not bad.size:
            return ""
        return f"{bad.size} of {due.size} bytes differ, the first at {int(bad[0])}"

    def __call__(self, **how: Any) -> None:
        """Launch, on arrays that exist on every rank, also where nothing is in them."""
        self.launch(*self.whole, **how)


class CheckGroup(ChildGroup):
    """A group whose ranks leave a check together, also when one fails in it."""

    def exchange(self, payload: Any, fds: Sequence[int] = ()) -> Any:
        """Exchange; raise when another rank has ended the check already."""
        said = super().exchange(payload, fds)
        if "final" not in payload and any("final" in m for m, _ in said):
            raise RuntimeError("another rank ended this check")
        return said

    def end(self, payload: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchange what a check found, once all ranks have ended it."""
        while True:
            said = [m for m, _ in self.exchange({**payload, "final": True})]
            if all("final" in m for m in said):
                return said


class Rank:
    """One rank's process: torch, its group, and the session of a check."""

    def __init__(self, group: CheckGroup, torch: Any) -> None:
        self.group, self.torch = group, torch
        self.rank, self.n = group.rank, group.num_ranks
        self.session: Any = None
        self.shared = False
        self.stop_at = time.monotonic() + 3600
        """When all checks must have ended, by the clock of this machine."""

    def open(self, deadline_s: float = 20.0) -> None:
        """Open a session for a check (collective)."""
        from stretto.executors.cuda import open_session

        self.group.deadline_s = deadline_s
        self.group.broken[0] = 0
        self.session = open_session(self.group)

    def bytes(self, nbytes: int, registered: bool) -> Any:
        """Return a tensor of bytes, in registered memory when asked."""
        if registered:
            return self.torch.from_dlpack(self.session.empty((nbytes,), "uint8"))
        return self.torch.empty(nbytes, dtype=self.torch.uint8, device="cuda")

    def late(self, seconds: float = 0.0) -> bool:
        """Return whether there is less time left, the same on every rank."""
        mine = self.stop_at - time.monotonic() < seconds
        return any(m["late"] for m, _ in self.group.exchange({"late": mine}))

    def together(self) -> None:
        """Wait for all ranks, GPUs included."""
        self.torch.cuda.synchronize()
        self.group.exchange({})


def verdict(found: list[str]) -> dict[str, Any]:
    """Return a check's answer: every difference is a failure."""
    wrong = [f for f in found if f]
    assert not wrong, "; ".join(wrong[:5])
    return {"cases": len(found)}
