"""Congestion control by a policy: how far to go from Cubic's window, ACK by ACK.

The value says by which power of four Cubic's window is multiplied, -1 to 1. A policy is
run as packets through a switch that drops, with flows that come and go, shallow buffers
and deep ones; what it promises is proved by intervals, and counts beside how it does.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from stretto import topology
from stretto.errors import CallError
from stretto.search.evolve.problem import PolicyProblem, Verdict
from stretto.search.language import Form, Policy
from stretto.search.problems._machines import said_of
from stretto.search.problems._steering import FEATURES, FELL, certified, steered
from stretto.topology.traffic import Packets, Parcel, may_fail

__all__ = ["OFFER", "CongestionProblem"]

_SAMPLED_US = 10.0
_OF_WAIT, _OF_DROPS = 0.1, 2.0
"""What one more doubling of the round trip costs, in links; and a share of drops."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """A switch with some buffer, long flows that come and go, and short ones."""

    buffer_us: float
    flows: tuple[tuple[int, float, float], ...]
    """From which rank, from when on, how many bytes."""
    us: float

    @classmethod
    def drawn(cls, seed: int, ranks: int, rate: float, us: float) -> _Scene:
        draw = random.Random(f"scene {seed}")
        long = draw.randint(1, min(6, ranks - 1))
        flows = [(1 + i, draw.uniform(0, us / 2), rate * us) for i in range(long)]
        flows[0] = (1, 0.0, rate * us)
        for _ in range(draw.randint(2, 10)):
            size = draw.choice((20, 100, 400)) * 1e3
            flows.append((draw.randint(1, ranks - 1), draw.uniform(0, us), size))
        return cls(draw.choice((8.0, 30.0, 120.0)), tuple(flows), us)


class CongestionProblem(PolicyProblem):
    """Steer Cubic: full links, short queues, few drops, and promises proved."""

    name: ClassVar[str] = "cc"
    rungs = ("promises", "one scene", "all scenes")
    form: ClassVar[Form] = Form(
        FEATURES,
        largest={"wait": 8, "trend": 1, "loss": 1, "used": 1, "window": 8},
    )
    begin: ClassVar[Sequence[str]] = (
        "0",
        "0.5 - wait",
        "where(wait > 1, -0.5, 0)",
        "min(0, 1 - wait)",
        "-log(wait)",
        "where(loss > 0.01, -1, 0.1 - wait)",
        "0.3 - wait - trend",
    )

    def __init__(
        self, machine: str = "clos1x8", certify: float = 0.2, scenes: int = 6
    ) -> None:
        """Search on one switch; `certify`: what a proof of all promises is worth."""
        if not 0 <= certify <= 10:
            raise CallError(f"certify={certify:g}: want 0 to 10")
        if not 1 <= scenes <= 100:
            raise CallError(f"scenes={scenes}: want 1 to 100")
        self._certify, self._scenes = certify, scenes
        found = topology.load(machine)
        if found.num_ranks < 2:
            raise CallError(f"machine={machine!r}: want 2 ranks or more")
        self._machine = may_fail(found)
        self._into = found.links[found.route(1, 0).links[-1]]
        self._rate = self._into.bandwidth_gbytes_per_s * 1e3

    @property
    def said(self) -> Mapping[str, str]:
        """Return the machine and what counts."""
        return {
            "machine": said_of(self._machine), "certify": repr(self._certify),
            "scenes": str(self._scenes),
        }  # fmt: skip

    def judge(self, candidate: Policy, rung: int, *, fresh: int) -> Verdict:
        """Return what is not proved, and what is wasted, waited for and dropped."""
        proofs = certified(candidate["score"])["certified"]
        unproved = self._certify * (1 - proofs)
        if rung == 0:
            return Verdict.of(unproved, certified=proofs)
        some = range(1 if rung == 1 else self._scenes)
        found = self.figures(candidate, some, 600.0 if rung == 1 else 1500.0)
        return Verdict.of(unproved + found.pop("lack"), certified=proofs, **found)

    def figures(
        self,
        candidate: Policy,
        scenes: Sequence[int],
        us: float,
        *,
        spared: bool = True,
    ) -> dict[str, float]:
        """Return means over scenes: how links were used, how long was waited."""
        rows = [self._run(candidate, scene, us, spared) for scene in scenes]
        return {k: math.fsum(row[k] for row in rows) / len(rows) for k in rows[0]}

    def _run(
        self, candidate: Policy, number: int, us: float, spared: bool
    ) -> dict[str, float]:
        scene = _Scene.drawn(number, self._machine.num_ranks, self._rate, us)
        ports = replace(self._machine.ports, buffer_us=scene.buffer_us)
        machine = replace(self._machine, ports=ports)
        control = steered(candidate["score"], spared=spared)
        traffic: Packets[int] = Packets(machine, control, seed=number)
        for i, (src, ready, size) in enumerate(scene.flows):
            parcel = Parcel(i, machine.route(src, 0), size)
            traffic.send(parcel, ready_us=ready, queue=i)
        waits, at = [], 0.0
        while at < scene.us:
            at += _SAMPLED_US
            traffic.run_until(at)
            waits.append(traffic.queued(self._into.name) / self._rate)
        counts = traffic.counts()
        sent = sum(traffic.received(i) for i in range(len(scene.flows)))
        packets = max(1.0, sent / machine.ports.packet_nbytes)
        used = sent / (self._rate * scene.us)
        dropped = sum(c.drops for c in counts) / packets
        wait_us = math.fsum(waits) / len(waits)
        least_us = machine.route(1, 0).latency_us * 2
        cost = 1 - used + _OF_WAIT * math.log2(1 + wait_us / least_us)
        return {
            "lack": cost + _OF_DROPS * dropped, "used": used, "wait_us": wait_us,
            "dropped": dropped, "spared": traffic.counted(FELL) / packets,
        }  # fmt: skip

    def held_out(self, candidate: Policy) -> Mapping[str, float]:
        """Return the same of scenes that nobody searched on, and what is proved."""
        held = range(1000, 1000 + 3 * self._scenes)
        found = self.figures(candidate, held, 1500.0)
        return {**found, **certified(candidate["score"])}


OFFER = CongestionProblem
