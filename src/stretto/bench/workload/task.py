"""What is to be measured, as every rank is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stretto.bench.contender import BUFFERS
from stretto.bench.workload.cases import PAIRS, TESTS, CallCase, case_of
from stretto.errors import CallError, UnknownNameError

MODES = ("blocking", "overlapped", "graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTask:
    """One run of the benchmark; the same on every rank. JSON carries it."""

    tests: tuple[str, ...]
    sizes: tuple[int, ...]
    num_ranks: int
    peers: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    """stretto's own variants beside what it chooses; `all`: every algorithm."""
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    buffer: str = "numpy"
    device: str = "cpu"
    registered: bool = False
    in_place: bool = False
    cold: bool = False
    mode: str = "blocking"
    skew: float = 1.0
    traffic: tuple[tuple[float, ...], ...] = ()
    seed: int = 0
    batch_us: float = 100.0
    batches: int = 40
    """How many at most."""
    budget_s: float = 60.0
    """For all rows together."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What another job than measuring, such as tuning, wants to know."""
    meet: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse what every rank would refuse."""
        if self.mode not in MODES:
            raise UnknownNameError.among("mode", self.mode, MODES)
        if self.buffer not in BUFFERS:
            raise UnknownNameError.among("buffer", self.buffer, BUFFERS)
        if self.num_ranks < 1 or self.batches < 1 or not self.budget_s > 0:
            raise CallError(
                f"--ranks {self.num_ranks} --batches {self.batches} --budget "
                f"{self.budget_s}; want at least 1, 1, and more than 0"
            )
        if self.mode == "graph" and self.device == "cpu":
            raise CallError("--mode graph: graphs are CUDA's; want --device cuda")
        for name in self.tests:
            if name not in (*TESTS, "matrix"):
                raise UnknownNameError.among("test", name, (*TESTS, "matrix", "all"))

    def cases(self) -> list[CallCase]:
        """Return what is measured, in order; barrier has one size."""
        found = []
        for test in self.tests:
            if test in PAIRS and self.num_ranks < 2:
                continue
            sizes = (0,) if test == "barrier" else self.sizes
            found += [self._case(test, nbytes) for nbytes in sizes]
        return found

    def _case(self, test: str, nbytes: int) -> CallCase:
        return case_of(
            test,
            nbytes,
            self.num_ranks,
            dtype=self.dtype,
            op=self.op,
            root=self.root,
            in_place=self.in_place,
            skew=self.skew,
            seed=self.seed,
            traffic=self.traffic or None,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what JSON can carry."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BenchTask:
        """Read it back."""
        for name in ("tests", "sizes", "peers", "pins"):
            data[name] = tuple(data[name])
        data["traffic"] = tuple(tuple(row) for row in data["traffic"])
        return cls(**data)
