"""What is wrong: who did not enter, entered something else, or is stuck, and why.

It looks at where ranks stand (standing.py), which it is told by their last calls; it
asks nobody. The stragglers are named, and not the majority: of a thousand ranks that
wait for one, the one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from stretto.trace import Recording
from stretto.watch.standing import Stand, current, stands

_MOST_CHAIN = 32
_FRESH_NS = {False: 1_000_000, True: 1_000_000_000}
"""What has lasted no longer is no finding; hosts may enqueue far ahead of others."""
MISSING, MISMATCH, STUCK, LEFT = "missing_enter", "mismatch", "stuck", "missing_exit"
TRANSFER = "p2p_missing_counterpart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Involved:
    """What one rank has to do with a finding."""

    rank: int
    """Of the world."""
    how: str
    """`absent`, `elsewhere`, `stuck` or `gone`."""
    call: str = ""
    """The call that it is in, or the last one that it made."""
    seq: int = 0
    step: str = ""
    waits_for: tuple[int, ...] = ()
    """World ranks."""
    for_s: float = 0.0
    """For how long it has been so; 0: unknown."""
    doing: str = ""
    """What else is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Who waits for whom, to the first that waits for nobody."""

    links: tuple[tuple[int, str, int], ...]
    """World rank, where it is, the world rank it waits for."""
    cause: int
    """The world rank at its end."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong in one communicator."""

    kind: str
    """`missing_enter`, `mismatch`, `missing_exit`, `stuck`, `p2p_...`."""
    comm: str
    seq: int
    call: str
    """What most ranks are in."""
    size: int
    inside: int
    """How many ranks are in it, of `size`."""
    odd: tuple[Involved, ...]
    """Those to look at: fewer than the others, where there is a majority."""
    unknown: tuple[int, ...] = ()
    """World ranks of which nothing is known."""
    chains: tuple[Chain, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything found, the first cause first."""

    findings: tuple[Finding, ...]
    now_ns: int
    known: tuple[int, ...]
    causes: tuple[int, ...] = field(default=())
    """World ranks at which chains end, the most blamed first."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def diagnose(recording: Recording, now_ns: int = 0) -> Diagnosis:
    """Return what is wrong, `now` or when the last of the recording was made."""
    if not now_ns:
        times = [recording.calls[c].max(initial=0) for c in ("enqueue", "start", "end")]
        now_ns = int(max(times, default=np.int64(0)))
        now_ns = max([now_ns, *(w.since_ns for w in recording.waits)])
    by_comm = stands(recording)
    view = _View(recording, by_comm, now_ns)
    findings = [
        found
        for number, each in enumerate(by_comm)
        if (found := view.finding(number, each)) is not None
    ]
    blamed = Counter(c.cause for f in findings for c in f.chains)
    if not blamed:
        blamed.update(m.rank for f in findings for m in f.odd if m.how != "stuck")
    findings.sort(key=lambda f: (f.kind == STUCK, f.kind == LEFT, -f.inside))
    return Diagnosis(
        findings=tuple(findings),
        now_ns=now_ns,
        known=tuple(info.rank for info in recording.ranks),
        causes=tuple(rank for rank, _ in blamed.most_common()),
    )


class _View:
    def __init__(
        self, recording: Recording, by_comm: list[list[Stand]], now_ns: int
    ) -> None:
        self.recording, self.by_comm, self.now_ns = recording, by_comm, now_ns
        self.current = current(by_comm)
        self.last: dict[int, Stand] = {}
        for stand in (one for each in by_comm for one in each):
            mine = self.last.get(stand.world)
            if stand.seq and (mine is None or mine.enqueue < stand.enqueue):
                self.last[stand.world] = stand

    def finding(self, number: int, each: Sequence[Stand]) -> Finding | None:
        """Return what is wrong in a communicator, if anything."""
        inside = [one for one in each if one.is_inside]
        if not inside:
            return None
        comm = self.recording.comms[number]
        of_gpu = [one.seq for one in inside if one.is_enqueued]
        # who has enqueued less is behind; who is in an earlier call holds the others
        seq = max(of_gpu) if of_gpu else min(one.seq for one in inside)
        here = [one for one in inside if one.seq == seq]
        if len(here) < len(comm.members) and self._is_fresh(here):
            return None
        call = Counter(one.call for one in here).most_common(1)[0][0]
        odd: list[Involved] = []
        for one in each:
            if one.seq == seq and one.is_inside and one.call == call:
                continue
            odd.append(self._member(one, seq, call))
        absent = [m for m in odd if m.how == "absent"]
        elsewhere = [m for m in odd if m.how == "elsewhere"]
        known = {one.world for one in each}
        unknown = tuple(r for r in comm.members if r not in known)
        kind = MISMATCH if elsewhere else MISSING if absent or unknown else LEFT
        if not odd and not unknown:
            kind = STUCK
        if len(comm.members) == 2 and ">" in comm.name and kind == MISSING:
            kind = TRANSFER
        alike = [one for one in here if one.call == call]
        if kind == STUCK and not any(one.waits for one in alike):
            return None  # all are inside and nobody says that it waits: it goes on
        if kind in (STUCK, LEFT) or len(odd) > len(alike):
            odd = [m for m in odd if m.how == "elsewhere"]
            odd += [self._member(one, seq, "") for one in alike]
        return Finding(
            kind=kind,
            comm=comm.name,
            seq=seq,
            call=call,
            size=len(comm.members),
            inside=len(alike),
            odd=tuple(sorted(odd, key=lambda m: (m.how, -m.for_s, m.rank))),
            unknown=unknown,
            chains=tuple(self._chains(alike, unknown)),
        )

    def _is_fresh(self, here: Sequence[Stand]) -> bool:
        """Return whether nobody has waited for as much as an eye needs to see it."""
        return all(
            self.now_ns - (one.start or one.enqueue) < _FRESH_NS[one.is_enqueued]
            and not one.waits
            for one in here
        )

    def _member(self, one: Stand, seq: int, call: str) -> Involved:
        since, how = one.start or one.enqueue, "stuck"
        if one.seq < seq:
            how, since = "absent", one.end or one.enqueue
        elif one.seq > seq or not one.is_inside:
            how, since = "gone", one.end
            kind = self._kind_at(one, seq)
            if kind and call and kind != call:
                how = "elsewhere"
        elif call and one.call != call:
            how = "elsewhere"
        said = one.call
        if how == "elsewhere":
            said = self._kind_at(one, seq) or one.call
        waits = set(self._awaited(one))
        return Involved(
            rank=one.world,
            how=how,
            call=said,
            seq=one.seq,
            step="; ".join(dict.fromkeys(w.text for w in one.waits if w.text)),
            waits_for=tuple(sorted(waits)),
            for_s=max(0.0, (self.now_ns - since) / 1e9) if since else 0.0,
            doing=self._doing(one) if how in ("absent", "gone") else "",
        )

    def _awaited(self, one: Stand) -> list[int]:
        """Return whom a rank waits for, as ranks of the world."""
        members = self.recording.comms[one.comm].members
        peers = (p for w in one.waits for p in w.peers)
        return [members[p] for p in peers if 0 <= p < len(members)]

    def _kind_at(self, one: Stand, seq: int) -> str:
        """Return the call that a rank made by that number, if it is still known."""
        calls = self.recording.calls
        rows = np.flatnonzero(
            (calls["seq"] == seq)
            & (calls["comm"] == one.comm)
            & (calls["rank"] == one.world)
        )
        if not len(rows):
            return ""
        kind = self.recording.kinds[int(calls["kind"][rows[-1]])]
        return kind.text or kind.collective

    def _doing(self, one: Stand) -> str:
        other = self.current.get(one.world)
        if other is not None and other.comm != one.comm:
            comm = self.recording.comms[other.comm].name
            return f"it is in {other.call} of {comm}"
        last = self.last.get(one.world)
        if last is None:
            return "it has made no call"
        ago = (self.now_ns - (last.end or last.enqueue)) / 1e9
        was = "was enqueued" if last.is_enqueued else "ended"
        return f"it is in no call; its last {was} {ago:.1f} s ago: {last.call}"

    def _chains(self, alike: Sequence[Stand], unknown: Sequence[int]) -> list[Chain]:
        """Return a chain for each first cause: the longest that leads to it."""
        best: dict[tuple[int, str], Chain] = {}
        for one in alike:
            chain = self._chain(one, set(unknown))
            if chain is not None:
                key = chain.cause, chain.why
                if key not in best or len(best[key].links) < len(chain.links):
                    best[key] = chain
        return list(best.values())

    def _chain(self, one: Stand, unknown: set[int]) -> Chain | None:
        links: list[tuple[int, str, int]] = []
        seen: set[int] = set()
        here: Stand | None = one
        while here is not None and len(links) < _MOST_CHAIN:
            seen.add(here.world)
            after = self._after(here, seen)
            if after is None:
                break
            step = here.waits[0].text if here.waits else ""
            links.append((here.world, step or here.call, after))
            if after in unknown:
                return Chain(links=tuple(links), cause=after, why="nothing is known")
            if after in seen:
                return Chain(links=tuple(links), cause=after, why="they wait in a ring")
            inner = self.current.get(after)
            if inner is None or (inner.comm == here.comm and inner.seq != here.seq):
                why = self._absent(after, here)
                return Chain(links=tuple(links), cause=after, why=why)
            if inner.comm == here.comm and inner.call != here.call:
                why = f"it called {inner.call}"
                return Chain(links=tuple(links), cause=after, why=why)
            here = inner
        if not links:
            return None
        return Chain(links=tuple(links), cause=links[-1][2], why="it does not say")

    def _absent(self, rank: int, waiting: Stand) -> str:
        stand = next(s for s in self.by_comm[waiting.comm] if s.world == rank)
        if stand.seq >= waiting.seq:
            return f"it has left call {waiting.seq}: {self._doing(stand)}"
        return self._doing(stand)

    def _after(self, here: Stand, seen: set[int]) -> int | None:
        """Return whom a rank waits for: one that is not inside before one that is."""
        members = self.recording.comms[here.comm].members
        peers = self._awaited(here)
        known = {s.world: s for s in self.by_comm[here.comm]}

        def inside(rank: int) -> bool:
            stand = known.get(rank)
            return stand is not None and stand.seq == here.seq and stand.is_inside

        for rank in (*peers, *(m for m in members if not here.waits)):
            if rank != here.world and not inside(rank):
                return rank
        fresh = [rank for rank in peers if rank not in seen and rank != here.world]
        return fresh[0] if fresh else (peers[0] if peers else None)
