"""MSCCL++ JSON plans, read as programs.

A plan holds, for every rank, thread blocks of operations that copy, reduce and store
into peers' memory, with signals, waits and barriers between. The blocks run here in
turn, as far as waits allow; what each operation stores becomes one assignment. Reading
packets waits for their arrival. Where a group of blocks shares an operation, each does
its part, so chunks are cut as finely as the groups need. In-switch operations cannot be
expressed and are refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any

from stretto.errors import ParseError
from stretto.foreign.blocks import Places
from stretto.ir import Op, Program, Ref

__all__ = ["from_plan"]

_COLLECTIVES = {
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reducescatter": "reduce_scatter",
}
_COPIES = {"copy", "put", "get", "pws", "pwsf", "ppkt", "rppkt", "upkt", "cpkt"}
_REDUCES = {"re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt"}
_SIGNALS = {"signal", "rlxsignal", "pws", "pwsf"}
_WAITS = {"wait", "rlxwait"}
_FREE = {"nop", "flush"}
_ARRIVE = {"ppkt", "rppkt"}
_PACKETS = {"upkt", "rppkt", "repkt", "respkt", "recpkt", "recspkt"}


def from_plan(text: str, *, root: int = 0) -> Program:
    """Return the program that a plan describes."""
    try:
        plan = json.loads(text)
        gpus = sorted(plan["gpus"], key=lambda g: int(g["id"]))
        collective = _COLLECTIVES[plan["collective"].replace("_", "").lower()]
        chunks = max(max(int(g["input_chunks"]), int(g["output_chunks"])) for g in gpus)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ParseError(
            f"MSCCL++ plan: {type(e).__name__} {e}; want JSON with gpus, collective"
            f" (one of {', '.join(sorted(_COLLECTIVES))}), input_chunks, output_chunks"
        ) from None
    fine = math.lcm(*_group_sizes(gpus))
    places = Places(
        collective,
        len(gpus),
        chunks * fine,
        in_place=bool(plan.get("inplace", False)),
        root=root,
    )
    run = _Run(gpus, places, fine)
    run.all()
    return places.program(str(plan.get("name", "imported")), run.ops)


def _group_sizes(value: Any) -> Iterator[int]:
    """Yield how many thread blocks share an operation, wherever a plan says so."""
    if isinstance(value, dict):
        yield int(value.get("tbg_size", 1))
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _group_sizes(part)


class _Block:
    """One thread block: what is left, and how it names channels and buffers."""

    def __init__(self, gpu: dict[str, Any], block: dict[str, Any]) -> None:
        self.rank, self.number = int(gpu["id"]), int(block["id"])
        self.left = deque(_flat(block["ops"]))
        self.done = 0
        self._gpu = gpu
        self._channels = {
            c["channel_type"]: c["channel_ids"] for c in block.get("channels", [])
        }
        self._remotes = {
            r["access_channel_type"]: r["remote_buffer_ids"]
            for r in block.get("remote_buffer_refs", [])
        }

    @property
    def where(self) -> str:
        """Return what errors call the next operation."""
        name = self.left[0].get("name") if self.left else "end"
        return f"gpu {self.rank}, threadblock {self.number}, op {self.done} ({name})"

    def peers(self, op: dict[str, Any]) -> list[tuple[int, str, int]]:
        """Return the peer, kind and ordinal of every channel of an operation."""
        kind = op["channel_type"]
        (joined,) = (
            c["connected_to"]
            for c in self._gpu["channels"]
            if c["channel_type"] == kind
        )
        found = []
        for local in op.get("channel_ids", [0]):
            channel = self._channels[kind][local]
            peer = joined[channel]
            found.append((int(peer), kind, joined[:channel].count(peer)))
        return found

    def buffer(self, op: dict[str, Any], at: dict[str, Any]) -> tuple[int, str]:
        """Return the rank and letter of a buffer."""
        if "type" in at:
            return self.rank, at["type"]
        remote = self._gpu["remote_buffers"][
            self._remotes[op["channel_type"]][at["buffer_id"]]
        ]
        return int(remote["rank"]), remote["type"]


def _flat(ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the operations with pipelines unrolled: one turn says what moves."""
    flat: list[dict[str, Any]] = []
    for op in ops:
        flat += _flat(op["ops"]) if op.get("name") == "pipeline" else [op]
    return flat


class _Run:
    """The state while blocks take turns."""

    def __init__(self, gpus: list[dict[str, Any]], places: Places, fine: int) -> None:
        self._places, self._fine = places, fine
        self.ops: list[Op] = []
        try:
            self._blocks = [_Block(g, b) for g in gpus for b in g["threadblocks"]]
        except (KeyError, TypeError) as e:
            raise ParseError(
                f"MSCCL++ plan: {e!r}; want threadblocks with ops"
            ) from None
        self._signals: Counter[tuple[int, int, str, int]] = Counter()
        self._semaphores: Counter[tuple[int, int]] = Counter()
        self._arrived: set[tuple[int, int]] = set()
        self._barrier: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._passed: Counter[tuple[int, int, int]] = Counter()
        for gpu in gpus:
            for number, semaphore in enumerate(gpu.get("semaphores", [])):
                value = int(semaphore.get("init_value", 0))
                self._semaphores[int(gpu["id"]), number] = value

    def all(self) -> None:
        """Run every block to its end, or say which wait for ever."""
        moved = True
        while moved:
            moved = False
            for block in self._blocks:
                while block.left:
                    try:
                        if not self._step(block, block.left[0]):
                            break
                    except (KeyError, IndexError, TypeError, ValueError) as e:
                        raise ParseError(f"{block.where}: {e!r} in the plan") from None
                    block.left.popleft()
                    block.done += 1
                    moved = True
        if stuck := [b for b in self._blocks if b.left]:
            raise ParseError(
                f"{stuck[0].where} waits for ever ({len(stuck)} blocks do);"
                " want signals and waits that match"
            )

    def _step(self, block: _Block, op: dict[str, Any]) -> bool:
        """Do one operation; return False when it must wait."""
        name = op["name"]
        if name in _WAITS:
            keys = [(p, block.rank, kind, i) for p, kind, i in block.peers(op)]
            if any(not self._signals[key] for key in keys):
                return False
            self._signals.subtract(keys)
        elif name in _COPIES | _REDUCES:
            if not self._move(block, op):
                return False
        elif name == "barrier":
            return self._meet(block, op)
        elif name == "sem_acquire":
            names = [(block.rank, int(i)) for i in op["semaphore_ids"]]
            if any(self._semaphores[key] < 1 for key in names):
                return False
            self._semaphores.subtract(names)
        elif name == "sem_release":
            self._semaphores.update((block.rank, int(i)) for i in op["semaphore_ids"])
        elif name not in _SIGNALS | _FREE:
            raise ParseError(
                f"{block.where}: cannot be expressed; want one of"
                f" {', '.join(sorted(_COPIES | _REDUCES | _SIGNALS | _WAITS))}"
            )
        if name in _SIGNALS:
            self._signals.update(
                (block.rank, p, kind, i) for p, kind, i in block.peers(op)
            )
        return True

    def _meet(self, block: _Block, op: dict[str, Any]) -> bool:
        """Pass a barrier once all its blocks have come."""
        key = (block.rank, int(op["barrier_id"]))
        come = self._barrier[key]
        come.add(block.number)
        if len(come) < int(op["num_threadblocks"]):
            return False
        passed = (*key, block.number)
        if self._passed[passed]:
            return False
        self._passed[passed] = 1
        if all(self._passed[(*key, b)] for b in come):
            for b in come:
                self._passed[(*key, b)] = 0
            come.clear()
        return True

    def _move(self, block: _Block, op: dict[str, Any]) -> bool:
        """Copy or reduce; packets are read only once they are there."""
        srcs = [self._ref(block, op, at) for at in op["src_buff"]]
        dsts = [self._ref(block, op, at) for at in op["dst_buff"]]
        name = op["name"]
        if name in _PACKETS:
            waited = srcs if name in _COPIES else srcs[1:]
            places = {(r.rank, c) for r in waited for c in range(r.start, r.stop)}
            if not places <= self._arrived:
                return False
        if name in _COPIES:
            self.ops += [Op(d, (s,)) for s, d in zip(srcs, dsts, strict=True)]
        else:
            self.ops.append(Op(dsts[0], tuple(srcs)))
            self.ops += [Op(d, (dsts[0],)) for d in dsts[1:]]
        if name in _ARRIVE or name in ("respkt", "recspkt", "cpkt", "recpkt"):
            self._arrived |= {
                (d.rank, c)
                for d in dsts
                if d.buffer == "scratch"
                for c in range(d.start, d.stop)
            }
        return True

    def _ref(self, block: _Block, op: dict[str, Any], at: dict[str, Any]) -> Ref:
        """Return the chunks of an operand; a block of a group has its share of them."""
        rank, letter = block.buffer(op, at)
        group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        share = int(at["size"]) * self._fine // int(group["tbg_size"])
        first = int(at["index"]) * self._fine + int(group["tb_id"]) * share
        return self._places.ref(rank, letter, first, share, block.where)
