"""A replica's leader: which version is asked for, from whom, and when it is the next.

It asks all ranks of whoever has the newest version to keep it readable, has its ranks
fetch it, compares their sums with what was pushed, and then names it in steps.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.errors import (
    CallError,
    ChecksumError,
    LayoutError,
    StrettoError,
    TransferError,
)
from stretto.weights.hashes import differences, read_sums
from stretto.weights.manifest import Manifest
from stretto.weights.member import Mate, Who, fault_of
from stretto.weights.offers import AskedVersion, VersionOffer, offers
from stretto.weights.pulling import From
from stretto.weights.switch import Failed, Fetched, Leader, NextStep
from stretto.weights.version import Version

__all__ = ["Leads"]

_Report = tuple[Manifest, tuple[int, ...]]
_Reports = Mapping[int, _Report]


class Leads:
    """See the module; all of it is called with the policy's lock held."""

    def __init__(self, ranks: Mate, *, is_single: bool, start: Version | None) -> None:
        self._ranks = ranks
        self.state = Leader(num_ranks=ranks.of, is_single=is_single)
        self.versions: dict[int, Version | None] = {0: start}
        """What the machines' numbers stand for."""
        self.epoch = "" if start is None else start.epoch
        self._base = 0 if start is None else -start.counter
        self._number = 0
        self._asked: AskedVersion | None = None
        self._has_failed = False
        """Whether the last attempt did: the next one trusts nothing that is here."""
        self._is_bad: set[tuple[str, Version]] = set()
        """From whom a version did not come."""
        self._reports: dict[int, _Report] = {}
        self._manifests: dict[str, Manifest] = {}
        self.foreign: Version | None = None
        """What was offered of an epoch that is not ours."""

    @property
    def current(self) -> Version | None:
        """Return the version of the next step."""
        return self.versions[self.state.current]

    def adopt(self, epoch: str) -> None:
        """Follow another epoch from now on: what it offers is newer than all so far."""
        Version(epoch, 0)
        self._base = max(self.versions) + 1
        self.epoch, self.foreign = epoch, None
        self.consider()

    # What can be had.

    def newest(self) -> Version | None:
        """Return the newest version of our epoch that anybody offers."""
        some = [o.version for o in self._offers() if o.is_whole]
        ours = [v for v in some if v.epoch == self.epoch]
        return max(ours, key=lambda v: v.counter, default=None)

    def _offers(self) -> list[VersionOffer]:
        return list(offers(self._ranks.known.values(), self._ranks.team))

    def _numbered(self, version: Version) -> int:
        return self._base + version.counter + 1

    def consider(self) -> None:
        """Ask for the newest version that can be had, if it is of use."""
        ranks = self._ranks
        if self._asked is not None or self.state.wanted or ranks.is_closed:
            return
        if len(ranks.mates()) < ranks.of - 1:
            return
        found = self._offers()
        whole = [offer for offer in found if offer.is_whole]
        if not self.epoch and whole:  # the source's, where it is there
            self.epoch = min(whole, key=lambda o: o.team).version.epoch
        self.foreign = next(
            (o.version for o in whole if o.version.epoch != self.epoch), None
        )
        usable = [
            offer
            for offer in found
            if offer.version.epoch == self.epoch
            and (offer.team, offer.version) not in self._is_bad
            and self.state.can_fetch(self._numbered(offer.version))
        ]
        if usable:
            newest = max(offer.version.counter for offer in usable)
            self._ask(self.choose([o for o in usable if o.version.counter == newest]))

    def choose(self, some: Sequence[VersionOffer]) -> VersionOffer:
        """Return which offer of a version is taken up.

        The source's, where it is there and has time; of replicas not always the same
        one; behind one that reads it itself only when nobody has it whole, and has
        time.
        """
        whole = {offer.team: offer for offer in some if offer.is_whole}
        if not whole:
            return min(some, key=lambda offer: (len(offer.via), offer.team))
        teams = sorted(whole)
        return whole["" if "" in whole else teams[self.state.attempt % len(teams)]]

    def _ask(self, offer: VersionOffer) -> None:
        self._number += 1
        base = "" if self.current is None or self._has_failed else str(self.current)
        asked = self._asked = AskedVersion(self._number, offer, base)
        for who in asked.members:
            version = str(asked.version)
            self._ranks.send(
                who.peer, "hold", number=asked.number, version=version, base=base
            )
        self._later(lambda leads: leads._late(asked))

    def _later(self, call: Callable[[Leads], None]) -> None:
        """Call it when patience has ended; a timer keeps nothing that was closed."""
        me = weakref.ref(self)

        def do() -> None:
            if (leads := me()) is not None:
                with leads._ranks.changed:
                    call(leads)
                    leads._ranks.changed.notify_all()

        until = time.monotonic() + self._ranks.patience
        self._ranks.engine.loop.at(until, do)

    def _late(self, asked: AskedVersion) -> None:
        if self._asked is asked and len(asked.granted) < len(asked.members):
            self._drop(asked)

    def _drop(
        self, asked: AskedVersion, *, is_bad: bool = True, for_good: bool = False
    ) -> None:
        """Give a version back; if it did not come, it is asked for again in a while.

        Not so `for_good`: what does not fit will not fit later.
        """
        for who in asked.members:
            self._ranks.send(who.peer, "release", number=asked.number)
        self._asked = None
        if not is_bad:
            return
        bad = asked.team, asked.version
        self._is_bad.add(bad)

        def again(leads: Leads) -> None:
            leads._is_bad.discard(bad)
            leads.consider()

        if not for_good:
            self._later(again)

    def forgive(self, team: str) -> None:
        """Ask somebody again who has something new to offer."""
        self._is_bad = {one for one in self._is_bad if one[0] != team}

    def held(self, peer: Any, body: Mapping[str, Any]) -> None:
        """Hear whether a version is kept readable; then have all ranks fetch it."""
        asked = self._asked
        if asked is None or int(body["number"]) != asked.number:
            return  # it was given back before
        if body["well"] is not True and self.state.wanted:
            self._not_handed_on(asked, "did not come to have all of it")
            return
        if body["well"] is not True:
            self._drop(asked, is_bad=body["busy"] is True)
            who = self._ranks.known.get(peer.identity)
            is_gone = body["busy"] is not True
            if who is not None and is_gone:
                who.withdraw(asked.version)  # until it says what it has
            self.consider()
            return
        (rank,) = [w.rank for w in asked.members if w.peer is peer]
        asked.granted[rank] = From.of(body)
        if self.state.wanted:  # what was handed on early has been switched to there
            self._compare()
        elif len(asked.granted) == len(asked.members):
            number = self._numbered(asked.version)
            self.versions[number] = asked.version
            self._reports = {}
            self.state, fetch = self.state.fetch(number)
            source = [asked.granted[r].dump() for r in range(len(asked.members))]
            self._ranks.tell_ranks(
                "fetch", attempt=fetch.attempt, v=fetch.version, keep=fetch.keep,
                version=str(asked.version), source=source, via=asked.through,
                base=asked.base,
            )  # fmt: skip

    # What became of it.

    def reported(self, rank: int, body: Mapping[str, Any]) -> None:
        """Hear of a rank that it has all; when all have, compare."""
        attempt = int(body["attempt"])
        if body["manifest"]:  # it is told once, also with what comes too late
            made = Manifest.parse(str(body["manifest"]))
            self._manifests[made.digest] = made
        if attempt != self.state.attempt or self._asked is None:
            return
        try:
            self._reports[rank] = self._report_of(rank, body)
        except StrettoError as e:
            self.failed(rank, attempt, e)
            return
        if len(self._reports) == self._ranks.of:
            self._later(lambda leads: leads._not_told(attempt))
            self._compare()

    def _compare(self) -> None:
        """Compare what all ranks have, once it is known what was pushed.

        Who handed it on while it came tells that when he has it whole.
        """
        asked, reports = self._asked, dict(self._reports)
        if asked is None or len(reports) < self._ranks.of:
            return
        if asked.is_whole:
            attempt = self.state.attempt
            self._ranks.engine.loop.apart(lambda: self._judge(attempt, asked, reports))

    def _not_told(self, attempt: int) -> None:
        asked = self._asked
        if asked is not None and attempt == self.state.attempt and not asked.is_whole:
            within = f"within {self._ranks.patience} s"
            self._not_handed_on(asked, f"did not say its sums {within}")

    def _not_handed_on(self, asked: AskedVersion, why: str) -> None:
        who = f"replica {asked.team!r}" if asked.team else "the source"
        text = f"{who} handed it on, and {why}"
        error = TransferError(self._about(asked, text))
        self.failed(0, self.state.attempt, error)

    def _about(self, asked: AskedVersion, text: str) -> str:
        return f"weights {self._ranks.name!r}, version {asked.version}: {text}"

    def _report_of(self, rank: int, body: Mapping[str, Any]) -> _Report:
        """Return what a rank says that it has."""
        digest = str(body["digest"])
        if digest not in self._manifests:
            raise TransferError(
                f"weights {self._ranks.name!r}: rank {rank} of replica "
                f"{self._ranks.team!r} has tensors as in {digest[:12]!r}, which it has "
                "told nobody; want its manifest with its first report"
            )
        manifest = self._manifests[digest]
        return manifest, read_sums(str(body["sums"]), manifest)

    def _judge(self, attempt: int, asked: AskedVersion, reports: _Reports) -> None:
        """Compare what has arrived with what was sent, in a thread of its own."""
        text = self._about(asked, "what has arrived cannot be compared: ")
        error = fault_of(lambda: self._require_alike(asked, reports), text)
        with self._ranks.changed:
            if self._ranks.is_over:
                return
            if error is None:
                self._committed(attempt)
            else:
                self.failed(0, attempt, error)
            self._ranks.changed.notify_all()

    def _require_alike(self, asked: AskedVersion, reports: _Reports) -> None:
        """Raise unless what has arrived is what the source's ranks have pushed."""
        theirs = []
        for who in asked.members:
            one = asked.granted[who.rank]
            manifest = self._ranks.puller.manifest(who.peer, one)
            theirs.append((manifest, read_sums(one.sums, manifest)))
        if faults := differences(theirs, [reports[rank] for rank in sorted(reports)]):
            more = f", and {len(faults) - 4} more" if len(faults) > 4 else ""
            text = f"what has arrived is not what was pushed: {'; '.join(faults[:4])}"
            raise ChecksumError(self._about(asked, text + more))

    def _committed(self, attempt: int) -> None:
        if self._asked is None or attempt != self.state.attempt:
            return
        for rank in range(self._ranks.of):
            self.state = self.state.hear(Fetched(rank, attempt))
        self._drop(self._asked, is_bad=False)
        self._ranks.fault, self._has_failed = None, False
        current = self.state.current
        for old in [v for v in self.versions if v < current]:
            del self.versions[old]
        self._ranks.tell_ranks("current", v=current, version=str(self.current))
        self.consider()

    def not_read(self, rank: int, body: Mapping[str, Any]) -> None:
        """Hear why a rank did not get it."""
        kind = LayoutError if body["is_ours"] is True else TransferError
        why = f"weights {self._ranks.name!r}, rank {rank}: {str(body['why'])[:2000]}"
        self.failed(rank, int(body["attempt"]), kind(why))

    def failed(self, rank: int, attempt: int, error: StrettoError) -> None:
        """Hear that a rank did not get it: the old version stays, whole."""
        if attempt != self.state.attempt or self._asked is None:
            return
        number = self.state.wanted
        self.state = self.state.hear(Failed(rank, attempt))
        self._ranks.fault, self._has_failed = error, True
        if isinstance(error, ChecksumError):
            self._ranks.tell_ranks("wrong", v=number)
        self._drop(self._asked, for_good=isinstance(error, CallError))
        self.consider()

    def left(self, who: Who) -> None:
        """Hear that somebody is gone who may have been asked."""
        asked = self._asked
        if asked is not None and who in asked.members:
            if not self.state.wanted:
                self._drop(asked)
            elif not asked.is_whole:
                why = who.peer.lost or "it closed"
                self._not_handed_on(asked, f"its rank {who.rank} is gone: {why}")
        self.consider()

    # Steps.

    def step(self) -> NextStep:
        """Name the next step; TransferError: there is nothing whole to read."""
        if self.state.has_stopped:
            raise TransferError(
                f"weights {self._ranks.name!r}: replica {self._ranks.team!r} has one "
                f"copy and half a version in it ({self._ranks.fault}); it goes on "
                "when a version is whole on all its ranks: policy.wait()"
            )
        if self.current is None:
            raise TransferError(
                f"weights {self._ranks.name!r}: replica {self._ranks.team!r} has no "
                "version yet; policy.wait() returns when it has one"
                + (f" ({self._ranks.fault})" if self._ranks.fault else "")
            )
        self.state, step = self.state.step()
        return step

    def check_foreign(self) -> None:
        """Raise when all that is offered is of another epoch."""
        if self.foreign is not None:
            raise CallError(
                f"weights {self._ranks.name!r}: version {self.foreign} is offered, and "
                f"replica {self._ranks.team!r} follows epoch {self.epoch!r}: a foreign "
                f"epoch has no age; policy.adopt({self.foreign.epoch!r}) follows it"
            )
