"""Run a plan in virtual time: lanes do their steps, transfers share the links.

Every lane has a time of its own. It runs ahead through steps that touch nothing shared
and stops where it must: at a wait or at packets that have not come, or while its own
data are leaving. What is on the way lives in the `Traffic`, where all times are one.

A move takes `op_overhead`, then its bytes at the rate that links and lane allow, beside
what combining takes; a peer has them the latency of the route later. A lane that pulls
has its data after another latency: that of asking. Signals follow the data of their
lane to the same peer.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import accumulate, pairwise

from stretto.compiler.plan import Loc, Move, Plan, Signal, Step, Wait
from stretto.errors import TopologyError
from stretto.executors.sim.lanes import Arrival, Key, Sent, SimulatedLane
from stretto.executors.sim.recording import record
from stretto.topology import Machine, Route
from stretto.topology.traffic import Delivery, Flows, Parcel, Traffic
from stretto.trace import Recorder


class Simulator:
    """A plan that runs on a machine; `run` leaves times and loads in its fields."""

    def __init__(
        self, plan: Plan, machine: Machine, *, atom_nbytes: Sequence[float],
        at: Sequence[int], epochs: int = 1, recorder: Recorder | None = None,
        traffic: Traffic[Sent] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.machine, self.costs = plan, machine, machine.costs
        self.at = at
        """Where each rank of the plan is: a rank of the machine."""
        self._ways = self._named() if plan.ways else {}
        self.network: Traffic[Sent] = traffic or Flows(machine)
        self.lanes = [
            SimulatedLane(rank, index, steps)
            for rank, lanes in enumerate(plan.ranks)
            for index, steps in enumerate(lanes)
        ]
        self.epochs = epochs
        self.epoch_ends_us = [0.0] * epochs
        self.cut: dict[tuple[int, int], None] = {}
        """Ranks that had something for another, and no way to it."""
        self._recorder = recorder
        self._ends = [0.0, *accumulate(atom_nbytes)]
        self._on_engine = plan.schedule.protocol == "engine"
        self._blocks_rate = self.costs.block_gbytes_per_s * plan.schedule.blocks * 1e3
        self._push_rate = min(self.costs.lane_gbytes_per_s * 1e3, self._blocks_rate)
        if self._on_engine:
            self._push_rate = self._blocks_rate = self.costs.engine_gbytes_per_s * 1e3
        self._pull_rate = min(self.costs.pull_gbytes_per_s * 1e3, self._push_rate)
        self._ready: deque[SimulatedLane] = deque()
        self._heard: dict[Key, Arrival] = {}
        """Signals that have come."""
        self._listening: dict[Key, list[SimulatedLane]] = {}
        self._landed: dict[tuple[int, int], list[Arrival | None]] = {}
        """By rank and epoch: the packets that have come, by unit of staging."""
        self._watching: dict[tuple[int, int], dict[int, list[SimulatedLane]]]
        self._watching = defaultdict(dict)
        """By rank and epoch: who waits for packets, by unit."""

    def run(self, deadline_us: float) -> bool:
        """Run; return False when the deadline came or nobody could go on."""
        begin_us = self.costs.launch_us + self._on_engine * self.costs.engine_us
        for lane in self.alive():
            lane.now_us = begin_us
            self._ready.append(lane)
        while True:
            while self._ready:
                self._advance(self._ready.popleft())
            if not self.network.next_us() <= deadline_us:
                break
            for delivery in self.network.step():
                self._deliver(delivery)
        finished = all(lane.epoch == self.epochs for lane in self.alive())
        return finished and self.epoch_ends_us[-1] <= deadline_us

    def alive(self) -> list[SimulatedLane]:
        """Return the lanes of ranks that are not dead."""
        return [k for k in self.lanes if not self.is_dead(k.rank)]

    def is_dead(self, rank: int) -> bool:
        """Return whether a rank is dead."""
        return self.at[rank] in self.machine.dead_ranks

    def route(self, src: int, dst: int) -> Route:
        """Return the way from one rank of the plan to another."""
        return self.machine.route(self.at[src], self.at[dst])

    def _named(self) -> dict[tuple[int, int, int], Route]:
        """Return the ways that the plan names, by operation and ranks."""
        machine, found = self.machine, {}
        links = {
            (machine.node_name(k.src), machine.node_name(k.dst)): e
            for e, k in enumerate(machine.links)
            if k.bandwidth_gbytes_per_s
        }
        for op, src, dst, switches in self.plan.ways:
            stops = [str(self.at[src]), *switches, str(self.at[dst])]
            for a, b in pairwise(stops):
                if (a, b) not in links:
                    raise TopologyError(
                        f"{self.plan.name}: operation {op} goes by way of"
                        f" {'>'.join(stops)}; {machine.name} has no link from {a} to"
                        f" {b} that works"
                    )
            way = tuple(links[pair] for pair in pairwise(stops))
            late = sum(machine.links[e].latency_us for e in way)
            found[op, src, dst] = Route(way, late, ())
        return found

    # A lane's own time.

    def _advance(self, lane: SimulatedLane) -> None:
        """Do steps until one must wait for something."""
        steps = lane.steps
        while lane.epoch < self.epochs:
            while lane.at < len(steps):
                if not self._do(lane, steps[lane.at]):
                    return
                lane.at += 1
            ends = self.epoch_ends_us
            ends[lane.epoch] = max(ends[lane.epoch], lane.now_us)
            lane.epoch, lane.at = lane.epoch + 1, 0

    def _do(self, lane: SimulatedLane, step: Step) -> bool:
        """Do a step, or begin it; False when the lane cannot go on yet."""
        if isinstance(step, Move):
            for src in step.srcs:
                if src.packets and not self._unpack(lane, src, step.stop - step.start):
                    return False
            return self._move(lane, step)
        if isinstance(step, Wait):
            channel = (step.rank, step.lane, lane.rank, lane.index)
            key = (channel, lane.epoch, step.n)
            arrival = self._heard.get(key)
            if arrival is None:
                lane.blocked_on = key
                self._listening.setdefault(key, []).append(lane)
                return False
            self._await(lane, arrival)
            lane.now_us += self._message_us(lane.rank, step.rank)
            return True
        lane.now_us += self._message_us(lane.rank, step.rank)
        if self._recorder:
            record(self._recorder, lane, step, lane.now_us)
        self._post(Sent(lane, step, lane.epoch), step.rank)
        return True

    def _message_us(self, rank: int, peer: int) -> float:
        """Return what one spends on a signal, on either side: between hosts only."""
        hosts = self.plan.hosts
        is_far = bool(hosts) and hosts[rank] != hosts[peer]
        return self.costs.message_us if is_far else 0.0

    def _unpack(self, lane: SimulatedLane, src: Loc, width: int) -> bool:
        """Wait for packets, one in each unit; False when some are not known yet."""
        here = lane.rank, lane.epoch
        row = self._units(here)[src.pos : src.pos + width]
        seen: Arrival | None = None
        for unit, arrival in enumerate(row, src.pos):
            if arrival is None:
                lane.blocked_on = (*here, unit)
                self._watching[here].setdefault(unit, []).append(lane)
                return False
            if arrival is not seen:  # those of one move are one
                self._await(lane, arrival)
                seen = arrival
        return True

    def _units(self, where: tuple[int, int]) -> list[Arrival | None]:
        units = self._landed.get(where)
        if units is None:
            units = self._landed[where] = [None] * self.plan.stage_units[where[0]]
        return units

    def _await(self, lane: SimulatedLane, arrival: Arrival) -> None:
        """Let the lane's time come to an arrival."""
        lane.blocked_on = None
        if arrival.at_us > lane.now_us:
            began, lane.now_us = lane.now_us, arrival.at_us
            lane.causes.append(arrival)
            if self._recorder:
                record(self._recorder, lane, arrival, began)

    # Moves, and what is sent.

    def _move(self, lane: SimulatedLane, move: Move) -> bool:
        """Begin a move; False when the lane must see its data leave, or come."""
        pushes = [loc for loc in move.dsts if loc.rank != lane.rank]
        pulls = [loc for loc in move.srcs if loc.rank != lane.rank]
        nbytes = self._ends[move.stop] - self._ends[move.start]
        lane.began_us = lane.now_us
        lane.now_us += self.costs.op_overhead_us
        lane.busy_us = lane.now_us + self._own_us(lane, move, nbytes)
        behind = self.costs.background_puts and not pulls
        lane.moving = 1 + (0 if behind else len(pushes) + len(pulls))
        rate = self._pull_rate if pulls else self._push_rate
        rate /= max(1, len(pushes) + len(pulls))
        for loc in pulls:
            sent = Sent(lane, move, lane.epoch, loc)
            self._post(sent, loc.rank, nbytes, rate, pull=True)
        for loc in pushes:
            wire = nbytes / self.costs.packet_efficiency if loc.packets else nbytes
            self._post(Sent(lane, move, lane.epoch, loc, behind), loc.rank, wire, rate)
        return self._moved(lane, move, pulled=bool(pulls))

    def _own_us(self, lane: SimulatedLane, move: Move, nbytes: float) -> float:
        """Return what the lane's own memory needs to combine or store that much."""
        if len(move.srcs) > 1:
            rate = min(self.costs.reduce_gbytes_per_s * 1e3, 2 * self._blocks_rate)
            return nbytes * (len(move.srcs) + 1) / rate
        if lane.rank in [dst.rank for dst in move.dsts]:
            return nbytes / min(self.costs.copy_gbytes_per_s * 1e3, self._blocks_rate)
        return 0.0

    def _moved(self, lane: SimulatedLane, move: Move, *, pulled: bool) -> bool:
        """Count down what a move still waits for; True when that was the last."""
        lane.moving -= 1
        if lane.moving:
            return False
        lane.now_us = max(lane.now_us, lane.busy_us)
        for dst in move.dsts:
            if dst.packets and pulled:  # they leave when the last source has come
                latency = self.route(lane.rank, dst.rank).latency_us
                self._announce(lane, lane.epoch, move, dst, lane.now_us, latency)
        if self._recorder:
            nbytes = self._ends[move.stop] - self._ends[move.start]
            record(self._recorder, lane, move, lane.began_us, round(nbytes))
        return True

    def _announce(
        self,
        lane: SimulatedLane,
        epoch: int,
        move: Move,
        dst: Loc,
        left: float,
        latency: float,
    ) -> None:
        """Let packets arrive, one in each unit."""
        there, at, stop = (dst.rank, epoch), dst.pos, dst.pos + move.stop - move.start
        arrival = Arrival(left + latency, lane, left)
        self._units(there)[at:stop] = [arrival] * (stop - at)
        watching = self._watching[there]
        for unit in sorted(unit for unit in watching if at <= unit < stop):
            self._ready.extend(watching.pop(unit))

    def _post(
        self, sent: Sent, peer: int, nbytes: float = 0.0, rate: float = 0.0, *,
        pull: bool = False,
    ) -> None:  # fmt: skip
        """Send something to a peer, or ask it for something."""
        lane = sent.lane
        src, dst = (peer, lane.rank) if pull else (lane.rank, peer)
        op = sent.step.op if isinstance(sent.step, Move) else -1
        try:
            named = self._ways and self._ways.get((op, src, dst))
            route = named or self.route(src, dst)
        except TopologyError:
            self.cut[src, dst] = None  # it never arrives, and a move never ends
            return
        parcel = Parcel(sent, route, nbytes, rate)
        ready = lane.now_us + (route.latency_us if pull else 0.0)
        delivery = self.network.send(parcel, ready_us=ready, queue=(lane, peer, pull))
        if delivery is not None:
            self._deliver(delivery)

    def _deliver(self, delivery: Delivery[Sent]) -> None:
        """Note what has left, and when it arrives."""
        (lane, step, epoch, loc, behind), left, arrives = delivery
        if isinstance(step, Signal):
            if step.rank != lane.rank:
                arrives += self.costs.flag_latency_us
            channel = (lane.rank, lane.index, step.rank, step.lane)
            key = (channel, epoch, step.n)
            self._heard[key] = Arrival(arrives, lane, left)
            self._ready.extend(self._listening.pop(key, ()))
            return
        assert loc is not None  # every parcel of a move is one of its operands
        pulled = [src.rank for src in step.srcs] != [lane.rank] * len(step.srcs)
        if loc.packets and not pulled:
            self._announce(lane, epoch, step, loc, left, arrives - left)
        if not behind:
            lane.now_us = max(lane.now_us, arrives if loc in step.srcs else left)
            if self._moved(lane, step, pulled=pulled):
                lane.at += 1
                self._ready.append(lane)
