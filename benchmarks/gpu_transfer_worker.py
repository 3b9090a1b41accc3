"""One rank of gpu_transfer.py: memory that it shares, and what it puts to others."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch_ranks import Ranks, inner  # first: it finds the library

from stretto.transfer import Engine, Layout

WAIT = 30.0
KB, MB = 1 << 10, 1 << 20
Steps = dict[str, Callable[[], Any]]


class Side(Ranks):
    """A process with its GPU, its engine and its peers."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        job = Path(args.meet).parent.name
        self.engine = Engine(f"rank{self.rank}", job=job)
        self.everybody(None)
        self.peers: dict[int, Any] = {}
        for q in range(self.ranks):
            if q > self.rank:
                self.peers[q] = self.engine.connect(f"rank{q}").wait(WAIT)
            elif q < self.rank:
                self.peers[q] = self.engine.peer(f"rank{q}").wait(WAIT)
        self.said: dict[str, Any] = {"rows": [], "checked": 0}
        self.said["torch"] = self.torch.__version__
        self._names = 0
        if self.is_gpu:
            self.said["gpu"] = self.torch.cuda.get_device_name()
            self.torch.cuda.set_stream(self.torch.cuda.Stream())
            one = self.torch.zeros(1, device=self.device)
            self.dist.all_reduce(one)  # batches of sends want a group that is there

    # Memory.

    def memory(self, nbytes: int) -> Any:
        """Return bytes that can be shared."""
        if self.is_gpu:
            return self.torch.empty(nbytes, dtype=self.torch.uint8, device=self.device)
        return self.torch.from_numpy(self.engine.arena(nbytes))

    def draw(self, nbytes: int, seed: int) -> Any:
        """Return random bytes, the same on every rank that draws them."""
        gen = self.torch.Generator(self.device).manual_seed(seed)
        words = -(-nbytes // 8)
        made = self.torch.empty(words, dtype=self.torch.int64, device=self.device)
        return made.random_(generator=gen).view(self.torch.uint8)[:nbytes]

    def names(self, count: int) -> list[str]:
        """Return new names, the same on all ranks."""
        self._names += count
        return [f"m{self._names - k}" for k in range(count)]

    def region(self, name: str, owner: int) -> Any:
        """Return memory by its name: our own, or a peer's."""
        if owner == self.rank:
            return self.mine[name]
        return self.peers[owner].region(name).wait(WAIT)

    def share(self, name: str, given: Any, layout: Layout | str) -> Any:
        """Share memory, and remember it by its name."""
        self.settle()
        self.mine[name] = self.engine.share(given, name, layout)
        return self.mine[name]

    def share_pair(self, ours: Any, theirs: Any, layout: str) -> None:
        """Share memory of rank 0 and of rank 1, each a name and a tensor."""

        def share() -> None:
            if self.rank < 2:
                name, tensor = theirs if self.rank else ours
                self.share(name, tensor, layout)

        self.together(share)

    def drop(self, *names: str) -> None:
        """Take memory back, when nobody uses it any more."""
        self.settle()
        self.everybody(None)
        for name in names:
            if name in self.mine:
                self.engine.unshare(self.mine.pop(name))
        self.everybody(None)

    mine: dict[str, Any] = {}  # noqa: RUF012  (one rank a process)

    # What is done.

    def call(self, *moves: Any) -> Callable[[], None]:
        """Return what does prepared transfers, on the stream of the moment."""
        if not self.is_gpu:
            return lambda: [move() for move in moves] and None
        current = self.torch.cuda.current_stream

        def enqueue() -> None:
            stream = current()
            for move in moves:
                move(stream)

        return enqueue

    def case(
        self, stage: str, what: str, nbytes: int, steps: Steps,
        right: Callable[[], str], wipe: Callable[[], None], **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Do each once and compare every byte; time those that are right."""
        failed = {}
        for name, step in list(steps.items()):
            _, wrong = self.tried(wipe)
            if not wrong:
                _, wrong = self.tried(step)
            if not wrong:
                found, wrong = self.tried(right)
                wrong = wrong or self.agree(found)
            self.said["checked"] += 1
            if wrong:
                failed[name] = wrong
                del steps[name]
        row = {"stage": stage, "what": what, "nbytes": nbytes, "failed": failed}
        row.update(self.compare(steps, self.args.repeats))
        row.update(more)
        self.keep(row)
        return row

    def keep(self, row: dict[str, Any]) -> None:
        """Add a row, print it, write everything."""
        self.said["rows"].append(row)
        shown = {k: v for k, v in row.items() if k != "spread"}
        self.say(shown)
        self.write(self.said)

    def goal(self, row: dict[str, Any], text: str, reached: bool | None) -> None:
        """Say what a row was to reach."""
        row["goal"] = text
        row["reached"] = "-" if reached is None else "yes" if reached else "no"
        self.write(self.said)

    def between(self, here: int, there: int, send: Any, recv: Any) -> Any:
        """Return what NCCL, or Gloo, does to send from one rank to another."""
        dist = self.dist
        if self.rank == here:
            return lambda: dist.send(send(), there)
        return recv if self.rank == there else _nothing

    def together(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns; all ranks raise where one does."""
        made, wrong = self.tried(call)
        if wrong:
            raise RuntimeError(wrong)
        return made

    def ready(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """Return the step that `make` returns, or one that raises on every rank."""
        made, wrong = self.tried(make)
        return made if not wrong else lambda: _refuse(wrong)


def _nothing() -> None:
    """Do nothing: others do."""


def _refuse(why: str) -> None:
    raise RuntimeError(why)


def puts(side: Side) -> None:
    """One piece from rank 0 to rank 1."""
    most = (1 if side.args.small else 256) * MB
    sizes = [size for k in range(0, 19, 2) if (size := KB << k) <= most]
    ours, theirs = side.names(2)
    src, dst = side.memory(most), side.memory(most)
    src.copy_(side.draw(most, 1))
    side.share_pair((ours, src), (theirs, dst), f"N={most} uint8")
    for size in reversed(sizes):
        if side.late():
            break
        steps: Steps = {}
        for by in ("kernel", "engines"):

            def make(by: str = by, size: int = size) -> Callable[[], None]:
                if side.rank != 0:
                    return _nothing
                a, b = side.region(ours, 0)[:size], side.region(theirs, 1)[:size]
                return side.call(b.prepare_put(a, **_by(side, by)))

            steps[by] = side.ready(make)
        steps[side.baseline] = side.between(
            0, 1, lambda n=size: src[:n], lambda n=size: side.dist.recv(dst[:n], 0)
        )

        def right(n: int = size) -> str:
            if side.rank != 1:
                return ""
            same = side.torch.equal(dst[:n], side.draw(most, 1)[:n])
            rest = not dst[n:].any().item()
            return "" if same and rest else f"{n} bytes: same {same}, rest {rest}"

        row = side.case("puts", _size(size), size, steps, right, lambda: dst.zero_())
        if size == 256 * MB and row["us"]:
            best = min(v for k, v in row["us"].items() if k in ("kernel", "engines"))
            side.goal(row, ">= 370 GB/s", size / best / 1e3 >= 370)
    rows = [row for row in side.said["rows"] if row["stage"] == "puts"]
    others = [row for row in side.said["rows"] if row["stage"] != "puts"]
    side.said["rows"] = others + sorted(rows, key=lambda row: row["nbytes"])
    side.drop(ours, theirs)


def blocks(side: Side) -> None:
    """Small blocks from any places to any others."""
    cases = ((40_000, 8 * KB, 1.5), (82_000, 4 * KB, 2.0))
    if side.args.small:
        cases = ((400, 8 * KB, 1.5), (820, 4 * KB, 2.0))
    for count, nbytes, goal in cases:
        row = shuffled(side, "blocks", count, nbytes, ("kernel",))
        if row is not None and "kernel" in row["us"]:
            side.goal(row, f"<= {goal} ms", row["us"]["kernel"] <= 1e3 * goal)


def shuffled(
    side: Side, stage: str, count: int, nbytes: int, ways: Sequence[str]
) -> dict[str, Any] | None:
    """Move blocks from rank 0 to rank 1, both orders drawn."""
    if side.late():
        return None
    torch, total = side.torch, count * nbytes
    ours, theirs = side.names(2)
    rng = np.random.default_rng(count)
    from_, to = rng.permutation(count), rng.permutation(count)
    layout = f"B={count} X={nbytes} uint8"
    src, dst = side.memory(total), side.memory(total)
    src.copy_(side.draw(total, count))
    side.share_pair((ours, src), (theirs, dst), layout)
    steps: Steps = {}
    notes = []
    for by in ways:

        def make(by: str = by) -> Callable[[], None]:
            if side.rank != 0:
                return _nothing
            a, b = side.region(ours, 0)[from_], side.region(theirs, 1)[to]
            begun = time.perf_counter()
            put = b.prepare_put(a, **_by(side, by))
            notes.append(f"{by} prepared in {1e3 * (time.perf_counter() - begun):.2f}")
            return side.call(put)

        steps[by] = side.ready(make)
    from_there, to_there = (torch.from_numpy(v).to(side.device) for v in (from_, to))
    packed = torch.empty_like(src).view(count, nbytes)

    def send() -> Any:
        torch.index_select(src.view(count, nbytes), 0, from_there, out=packed)
        return packed

    def recv() -> None:
        side.dist.recv(packed, 0)
        dst.view(count, nbytes).index_copy_(0, to_there, packed)

    steps[f"{side.baseline} and packing"] = side.between(0, 1, send, recv)

    def right() -> str:
        same = side.rank != 1 or _moved(side, dst, count, nbytes, from_there, to_there)
        return "" if same else "blocks differ"

    def anew() -> None:
        if side.rank == 0:
            a, b = side.region(ours, 0)[from_], side.region(theirs, 1)[to]
            begun = time.perf_counter()
            b.put(a, deadline=WAIT).wait(WAIT)
            notes.append(f"planned anew: {1e3 * (time.perf_counter() - begun):.2f}")

    if stage == "blocks":
        side.together(lambda: [anew(), anew()])
    told = side.everybody([f"{note} ms" for note in notes])[0]
    what = f"{count} x {_size(nbytes)}"
    row = side.case(stage, what, total, steps, right, dst.zero_, notes=told)
    side.drop(ours, theirs)
    return row


def _moved(side: Side, dst: Any, count: int, nbytes: int, from_: Any, to: Any) -> bool:
    """Return whether blocks are where they should be, every byte."""
    want = side.torch.empty_like(dst).view(count, nbytes)
    drawn = side.draw(count * nbytes, count).view(count, nbytes)
    want[to] = drawn[from_]
    return bool(side.torch.equal(want.view(-1), dst))


def crossover(side: Side) -> None:
    """As many bytes in pieces of other sizes, by a kernel and by copy engines."""
    total = (1 if side.args.small else 64) * MB
    for k in range(0, 11, 1 if not side.args.small else 5):
        piece = (4 * KB) << k
        few = total // piece <= 4096
        ways = ("kernel", "engines") if few else ("kernel",)
        if total // piece:
            shuffled(side, "crossover", total // piece, piece, ways)


def _by(side: Side, by: str) -> dict[str, str]:
    return {"by": by} if side.is_gpu else {}


def _size(nbytes: int) -> str:
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def median(values: Sequence[float]) -> float:
    """Return the median, rounded."""
    return round(statistics.median(values), 2)


def main() -> int:
    """Run the stages that there is time for."""
    parser = argparse.ArgumentParser()
    inner(parser)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--stages", nargs="+")
    parser.add_argument("--small", action="store_true")
    side = Side(parser.parse_args())
    from gpu_transfer_cases import reshards, signals
    from gpu_transfer_layers import layers

    stages = {
        "puts": puts, "blocks": blocks, "reshards": reshards, "signals": signals,
        "layers": layers, "crossover": crossover,
    }  # fmt: skip
    for name in side.args.stages:
        if side.late():
            side.said["cut"] = f"no time left at {name}"
            break
        begun = time.monotonic()
        _, wrong = side.tried(lambda name=name: stages[name](side))
        if wrong:
            side.said["rows"].append(
                {"stage": name, "what": name, "nbytes": 0, "us": {},
                 "failed": {name: wrong}}
            )  # fmt: skip
        side.say(f"{name}: {time.monotonic() - begun:.1f} s {wrong}")
        side.write(side.said)
    side.everybody(None)
    with contextlib.suppress(Exception):
        side.engine.close()
        side.dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
