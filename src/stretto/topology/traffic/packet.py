"""Traffic as packets: queues, marks, pauses, drops; every message of a plan is bytes.

What is sent in one queue is one connection, whose congestion control is remembered from
message to message. A message has arrived when its last byte has; it has left a latency
before. Loss, and links that fail, are mended by going back to what was received.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from stretto.errors import TopologyError
from stretto.fabric import jit
from stretto.fabric.jit import loading
from stretto.topology.machine import Machine
from stretto.topology.routes import Route
from stretto.topology.traffic import engine as e
from stretto.topology.traffic.arrays import taller, wider
from stretto.topology.traffic.congestion import OWN, Congestion
from stretto.topology.traffic.pausing import stalled
from stretto.topology.traffic.traffic import Delivery, LinkCounts, Parcel

__all__ = ["Packets"]

What = TypeVar("What")
_Key: TypeAlias = tuple[object, tuple[int, ...]]
_PS = 1_000_000
"""Picoseconds in a microsecond."""
_LATEST_US = 4e6
_SLICE_US = 20_000.0
_ACK_NBYTES = 60
_RTO_ROUNDS, _LEAST_RTO_US = 10.0, 500.0
_MODULE = "stretto.topology.traffic.fast"


class Packets(Generic[What]):
    """A machine's links, ports and buffers in virtual time."""

    def __init__(
        self,
        machine: Machine,
        congestion: Congestion,
        *,
        seed: int = 0,
        compiled: bool | None = None,
        loss: dict[str, float] | None = None,
    ) -> None:
        """Begin with empty queues.

        `loss` gives links a share of packets that they lose. `compiled` is as for
        `Flows`: the results are the same.
        """
        self.now_us, self.num_transfers = 0.0, 0
        self.machine, self.congestion = machine, congestion
        self._fast = not jit.missing() if compiled is None else compiled
        links = machine.links
        self._starts: list[tuple[int, int, int, Parcel[What]]] = []
        self._age = 0
        self._flows: dict[_Key, int] = {}
        self._routes: list[Route] = []
        self._waiting: list[deque[tuple[int, Parcel[What]]]] = []
        """By connection, the messages on their way, and where each ends."""
        self._readied: list[int] = []
        self._latest: dict[object, int] = {}
        self._ahead: dict[object, int] = {}
        lossy = bool(loss) or not machine.ports.pauses
        self._need_acks = congestion.acks or lossy
        self._single(seed, lossy)
        self._make_links(loss or {})
        self._make_nodes()
        self._params = np.array([p.value for p in congestion.parameters] or [0.0])
        self._told = np.zeros(8)
        self._heap = np.zeros(4096, np.int64)
        self._hops = 1
        self._packets = np.zeros((10, 0), np.int64)
        self._ints = np.zeros((3, 0), np.int64)
        self._signals = np.zeros((7, 0), np.int64)
        self._loads = np.zeros((2, 0))
        self._rows = np.zeros((21, 0), np.int64)
        self._last = np.zeros((3, 0), np.int64)
        self._ways = np.zeros((1, 0), np.int64)
        self._states = np.zeros(0)
        self._room(4096)
        self._compile()
        for link in range(len(links)):
            if not links[link].bandwidth_gbytes_per_s:
                self._table[e.DEAD, link] = 1

    # Making the arrays.

    def _single(self, seed: int, lossy: bool) -> None:
        ports, cc = self.machine.ports, self.congestion
        one = self._one = np.zeros(19, np.int64)
        one[e.PACKET] = ports.packet_nbytes
        one[e.SEED] = (seed * 2654435761 + 1) % 2**31
        one[e.FREE] = one[e.G_FREE] = -1
        one[e.ACKS], one[e.CNP_PS] = self._need_acks, int(cc.cnp_us * _PS)
        one[e.PAUSING], one[e.INT] = ports.pauses, cc.loads
        one[e.WIDTH] = OWN + cc.slots
        self._lossy = lossy
        share = cc.ecn_us[2] if cc.ecn_us else ports.ecn_max_share
        self._shares = np.array([ports.pause_share, share, cc.slope, cc.offset, 1.0])

    def _make_links(self, loss: dict[str, float]) -> None:
        links, ports = self.machine.links, self.machine.ports
        low, high = (self.congestion.ecn_us or (ports.ecn_min_us, ports.ecn_max_us))[:2]
        table = self._table = np.zeros((23, len(links)), np.int64)
        reals = self._reals = np.zeros((4, len(links)))
        for row in (e.HEAD, e.TAIL, e.FLY, e.FLY_LAST, e.TX, e.RING):
            table[row] = -1
        for i, link in enumerate(links):
            rate = link.bandwidth_gbytes_per_s * 1e3
            table[e.SRC, i], table[e.DST, i] = link.src, link.dst
            table[e.LATE, i] = round(link.latency_us * _PS)
            room = 2 * link.latency_us * rate + 4 * ports.packet_nbytes
            table[e.ROOM, i] = math.ceil(room)
            reals[e.PS, i] = _PS / rate if rate else 0.0
            reals[e.KMIN, i], reals[e.KMAX, i] = low * rate, high * rate
        for name, share in loss.items():
            reals[e.LOSS, self.machine.link_named(name)] = share

    def _make_nodes(self) -> None:
        machine = self.machine
        nodes = self._nodes = np.zeros(
            (2, machine.num_ranks + len(machine.switches)), np.int64
        )
        fastest = [0.0] * nodes.shape[1]
        for link in machine.links:
            rate = link.bandwidth_gbytes_per_s * 1e3
            fastest[link.src] = max(fastest[link.src], rate)
        for node, rate in enumerate(fastest):
            nodes[e.POOL, node] = int(machine.ports.buffer_us * rate)

    def _room(self, more: int) -> None:
        """Make room for more packets, signals and events."""
        one, had, told = self._one, self._packets.shape[1], self._signals.shape[1]
        self._packets = wider(self._packets, had + more)
        self._ints = wider(self._ints, had + more)
        chain = np.arange(had, had + more)
        self._packets[e.NEXT, had:] = np.append(chain[1:], one[e.FREE])
        one[e.FREE], one[e.LEAST_FREE] = had, one[e.LEAST_FREE] + more
        self._signals = wider(self._signals, told + more)
        self._loads = wider(self._loads, told + more)
        chain = np.arange(told, told + more)
        self._signals[e.G_NEXT, told:] = np.append(chain[1:], one[e.G_FREE])
        one[e.G_FREE], one[e.G_LEAST] = told, one[e.G_LEAST] + more
        heap = np.zeros(len(self._heap) + more, np.int64)
        heap[: len(self._heap)] = self._heap
        self._heap = heap
        self._gather()

    def _gather(self) -> None:
        self._all = (
            self._table, self._reals, self._nodes, self._packets, self._ints,
            self._rows, self._last, self._ways, self._signals, self._loads,
            self._states, self._params, self._told, self._heap, self._one, self._shares,
        )  # fmt: skip

    def _compile(self) -> None:
        cc = self.congestion
        handlers = (cc.on_ack, cc.on_cnp, cc.on_timer, cc.on_loss)
        if self._fast:
            (fast,) = loading.load("the packet engine", _MODULE)
            self._run, self._kick = fast.run, fast.kick
            self._handlers = tuple(fast.handler(one) for one in handlers)
        else:
            self._run, self._kick, self._handlers = e.run, e.kick, handlers

    def _flow(self, key: _Key, route: Route) -> int:
        """Return the connection of a queue, made when it is new."""
        found = self._flows.get(key)
        if found is not None:
            return found
        flow = self._flows[key] = len(self._routes)
        self._routes.append(route)
        self._waiting.append(deque())
        self._readied.append(0)
        if flow == self._rows.shape[1]:
            many = max(64, 2 * flow)
            if (many + len(self.machine.links)) * 4 >= e.CODE:
                raise TopologyError(
                    f"{self.machine.name}: {flow} connections; want fewer on packets"
                )
            self._rows = wider(self._rows, many)
            self._last = wider(self._last, many)
            self._ways = wider(self._ways, many)
            states = np.zeros(many * int(self._one[e.WIDTH]))
            states[: len(self._states)] = self._states
            self._states = states
        if len(route.links) > self._hops:
            self._hops = len(route.links)
            self._ways = taller(self._ways, self._hops)
            self._ints = taller(self._ints, 3 * self._hops)
            self._last = taller(self._last, 3 * self._hops)
        self._begin(flow, route)
        self._gather()
        return flow

    def _begin(self, flow: int, route: Route) -> None:
        rows, links = self._rows, self.machine.links
        packet = self.machine.ports.packet_nbytes
        rows[[e.FIRST, e.LAST, e.AFTER, e.BEFORE], flow] = -1
        rows[e.LAST_CNP, flow] = -(1 << 60)
        back = forth = 0.0
        for i, link in enumerate(route.links):
            us = 1 / (links[link].bandwidth_gbytes_per_s * 1e3)
            self._ways[i, flow] = link
            back += links[link].latency_us + _ACK_NBYTES * us
            forth += links[link].latency_us + packet * us
        rows[e.HOPS, flow], rows[e.BACK, flow] = len(route.links), round(back * _PS)
        width = int(self._one[e.WIDTH])
        state = self._states[flow * width :][:width]
        line = links[route.links[0]].bandwidth_gbytes_per_s * 1e3
        state[:OWN] = line, math.inf, math.inf, line, back + forth, packet
        self._told[0] = self.now_us
        self.congestion.begin(state, self._params, self._told)
        self._shares[e.INT_RTT] = max(self._shares[e.INT_RTT], back + forth)
        if self._lossy:
            rto = max(_LEAST_RTO_US, _RTO_ROUNDS * (back + forth))
            self._one[e.RTO] = max(int(self._one[e.RTO]), round(rto * _PS))

    # The protocol.

    @property
    def link_nbytes(self) -> list[float]:
        """Return the bytes that every link has carried."""
        return [float(n) for n in self._table[e.SENT_BYTES].tolist()]

    @property
    def num_events(self) -> int:
        """Return how many events there were."""
        return int(self._one[e.EVENTS])

    def send(
        self, parcel: Parcel[What], *, ready_us: float, queue: object
    ) -> Delivery[What] | None:
        """Send behind what is in the queue; return the delivery if it is now known."""
        parcel.ready = ready_us
        if not parcel.nbytes and not self._ahead.get(queue):
            late = parcel.route.latency_us
            return Delivery(parcel.what, ready_us, ready_us + late)
        self._ahead[queue] = self._ahead.get(queue, 0) + 1
        self._age += 1
        flow = self._latest.get(queue, -1)  # word goes behind the data before it
        if parcel.nbytes or flow < 0:
            flow = self._flow((queue, parcel.route.links), parcel.route)
            self._latest[queue] = flow
        parcel.queue = queue  # type: ignore[assignment]
        when = max(round(ready_us * _PS), int(self._one[e.NOW]), self._readied[flow])
        self._readied[flow] = when
        heapq.heappush(self._starts, (when, self._age, flow, parcel))
        return None

    def next_us(self) -> float:
        """Return when the next thing happens; infinity when nothing does."""
        first = self._starts[0][0] / _PS if self._starts else math.inf
        if any(self._waiting):
            first = min(first, max(self.now_us, int(self._one[e.NOW]) / _PS))
        return first

    def step(self) -> list[Delivery[What]]:
        """Go on until something arrives, or for a while."""
        left: list[Delivery[What]] = []
        end = int(self._one[e.NOW]) + round(_SLICE_US * _PS)
        while not left:
            until = min(end, self._starts[0][0]) if self._starts else end
            if until > _LATEST_US * _PS:
                raise TopologyError(
                    f"{self.machine.name}: more than {_LATEST_US / 1e6:g} s of packets;"
                    " want a smaller call, or the flow engine"
                )
            happened = self._advance(until)
            if happened == e.COMPLETED:
                self._arrived(int(self._one[e.DONE]), left)
            elif self._starts and self._starts[0][0] <= int(self._one[e.NOW]):
                self._start(left)
            elif happened == e.STOPPED:
                break
            elif happened == e.FULL:
                self._room(self._packets.shape[1])
            elif self._starts:
                self._one[e.NOW] = self._starts[0][0]
            else:
                self._explain()
        self.now_us = int(self._one[e.NOW]) / _PS
        return left

    def counts(self) -> Sequence[LinkCounts]:
        """Return what happened on every link."""
        t = self._table
        return [
            LinkCounts(
                name=link.name,
                nbytes=float(t[e.SENT_BYTES, i]),
                marks=float(t[e.MARKS, i]),
                pauses=int(t[e.PAUSES, i]),
                drops=int(t[e.DROPS, i]),
                max_queue=float(t[e.MOST, i]),
            )
            for i, link in enumerate(self.machine.links)
        ]

    def run_until(self, us: float) -> list[Delivery[What]]:
        """Go on until that time exactly; return what arrived."""
        left: list[Delivery[What]] = []
        target = round(us * _PS)
        while int(self._one[e.NOW]) < target:
            until = min(target, self._starts[0][0]) if self._starts else target
            happened = self._advance(until)
            if happened == e.COMPLETED:
                self._arrived(int(self._one[e.DONE]), left)
            elif happened == e.FULL:
                self._room(self._packets.shape[1])
            elif happened == e.STALLED:
                if any(bool(w) for w in self._waiting):
                    self._explain()
                self._one[e.NOW] = until
            while self._starts and self._starts[0][0] <= int(self._one[e.NOW]):
                self._start(left)
        self.now_us = us
        return left

    def queued(self, link: str) -> int:
        """Return the bytes that wait for a link."""
        return int(self._table[e.QUEUED, self.machine.link_named(link)])

    def received(self, queue: object) -> int:
        """Return how many bytes of a queue have been received in order."""
        flows = [flow for key, flow in self._flows.items() if key[0] == queue]
        return sum(int(self._rows[e.GOT, flow]) for flow in flows)

    def counted(self, slot: int) -> float:
        """Return the sum of what congestion control keeps in a slot of its own."""
        return float(self._states.reshape(-1, int(self._one[e.WIDTH]))[:, slot].sum())

    def fail(self, link: str) -> None:
        """Let a link fail now: what is on it is lost, and flows take other routes."""
        self.machine = self.machine.degraded(dead_links=[link])
        index = self.machine.link_named(link)
        self._table[e.DEAD, index] = 1
        if not self._lossy:
            raise TopologyError(
                f"link {link} fails: want `may_fail`, so that loss mends"
            )
        for flow, route in enumerate(self._routes):
            if index in route.links:
                src = self.machine.links[route.links[0]].src
                dst = self.machine.links[route.links[-1]].dst
                found = self.machine.flow_route(src, dst, flow)
                if len(found.links) != len(route.links):
                    raise TopologyError(f"link {link} fails: no route as short is left")
                self._routes[flow] = found
                self._ways[: len(found.links), flow] = found.links

    # What happens.

    def _advance(self, until: int) -> int:
        return int(self._run(until, *self._handlers, self._all))

    def _start(self, left: list[Delivery[What]]) -> None:
        """Give the next parcel's bytes to its connection."""
        _, _, flow, parcel = heapq.heappop(self._starts)
        rows = self._rows
        if not self._waiting[flow]:
            rows[e.ACTIVE, flow] = rows[e.TOTAL, flow]
        if parcel.nbytes:
            self.num_transfers += 1
            rows[e.TOTAL, flow] += math.ceil(parcel.nbytes)
        end = int(rows[e.TOTAL, flow])
        self._waiting[flow].append((end, parcel))
        if len(self._waiting[flow]) == 1:
            rows[e.BOUND, flow] = end
            if not parcel.nbytes:
                self._arrived(flow, left)
                return
        if parcel.nbytes:
            self._kick(flow, self._all)

    def _arrived(self, flow: int, left: list[Delivery[What]]) -> None:
        """Deliver the messages that are whole, and say where the next one ends."""
        rows, waiting = self._rows, self._waiting[flow]
        now = int(self._one[e.NOW]) / _PS
        while waiting and waiting[0][0] <= rows[e.GOT, flow]:
            _, parcel = waiting.popleft()
            late = parcel.route.latency_us
            when = max(now, parcel.ready + late)
            self._ahead[parcel.queue] -= 1
            left.append(Delivery(parcel.what, when - late, when))
        rows[e.BOUND, flow] = waiting[0][0] if waiting else 0

    def _explain(self) -> None:
        """Raise why nothing happens though something has not arrived."""
        stuck = next(f for f, waiting in enumerate(self._waiting) if waiting)
        raise stalled(self.machine, self._table, self._packets, self._routes[stuck])
