"""What a source's rank and a replica's rank have in common: they talk, and are read.

They talk over the connections that their engines have, on one topic for each name.
Each says hello to every peer that comes. What can be read is told when it changes, and
who wants to read asks for it first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.errors import CallError, StrettoError, TransferError, is_interruption
from stretto.fabric.patience import check_timeout
from stretto.trace import CallKind, observe
from stretto.transfer import Engine
from stretto.weights.copies import Copy
from stretto.weights.early import FAILED
from stretto.weights.pulling import Puller
from stretto.weights.version import Version

__all__ = ["Mate", "Member", "Who", "fault_of"]

WEIGHTS = "weights of rank"
"""Where recordings have them, in place of a communicator."""
_LONGEST_NAME = 100


class Who:
    """A peer that has said hello: what it is, and what it offers."""

    def __init__(self, peer: Any, said: Mapping[str, Any]) -> None:
        self.peer = peer
        self.team = str(said["team"])
        """Nothing for the source, else the name of a replica."""
        self.rank, self.of = int(said["rank"]), int(said["of"])
        self.metadata = {str(k): str(v) for k, v in dict(said["metadata"]).items()}
        if not 0 <= self.rank < self.of or len(self.team) > _LONGEST_NAME:
            raise ValueError(f"rank {self.rank} of {self.of}")
        self.offers: Version | None = None
        self.coming: Version | None = None
        """What it reads itself, and hands on as it comes."""
        self.via: tuple[str, ...] = ()
        self.hear(said)

    def hear(self, said: Mapping[str, Any]) -> None:
        """Hear what it offers now."""
        text, coming = str(said["version"]), str(said["coming"])
        self.offers = Version.parse(text) if text else None
        self.coming = Version.parse(coming) if coming else None
        self.via = tuple(str(team) for team in said["via"])

    def withdraw(self, version: Version) -> None:
        """Take it that a version is not to be had there."""
        self.offers = None if self.offers == version else self.offers
        self.coming = None if self.coming == version else self.coming


def fault_of(work: Callable[[], object], what: str = "") -> StrettoError | None:
    """Do something in a thread of its own; return what went wrong, of any kind.

    Else whoever waits for the end of it would do so for ever.
    """
    try:
        work()
    except StrettoError as e:
        return e
    except Exception as e:
        if is_interruption(e):
            raise
        return TransferError(f"{what}{type(e).__name__}: {e}")
    return None


class Member:
    """See the module; `team` is nothing for a source, else the replica's name."""

    def __init__(
        self, engine: Engine, name: str, *, team: str, rank: int, of: int,
        patience: float,
    ) -> None:  # fmt: skip
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise CallError(
                f"weights {str(name)[:80]!r}; want a name of 1 to {_LONGEST_NAME}"
            )
        if not isinstance(of, int) or not isinstance(rank, int) or not 0 <= rank < of:
            raise CallError(
                f"rank={rank!r} of {of!r}; want 0 to one less than there are"
            )
        check_timeout(patience, f"weights {name!r}", "patience")
        self.engine, self.name, self.patience = engine, name, patience
        self.team, self.rank, self.of = team, rank, of
        self.known: dict[str, Who] = {}
        """Those that have said hello, by identity."""
        self.changed = threading.Condition(threading.RLock())
        """Held while anything of this is looked at or changed; told of changes."""
        self.copies: list[Copy] = []
        self.is_closed = False
        self.fan = 0
        """How many may read here at once, if that is limited."""
        self._has_put_off = False
        self._twins: dict[tuple[str, int], Any] = {}
        self._words: dict[str, Callable[[Any, Mapping[str, Any]], None]] = {
            "hello": self._hello, "offer": self._offer, "hold": self._hold,
            "release": self._release, "bye": self._bye, "watch": self._watch,
            "show": self._show,
        }  # fmt: skip

    def __repr__(self) -> str:
        """Return what it is, of which name, and which rank."""
        ended = ", closed" if self.is_closed else ""
        place = f"rank {self.rank} of {self.of}"
        return f"<{type(self).__name__} {self.name!r}, {place}{ended}>"

    @property
    def topic(self) -> str:
        """Return what engines call what is said of these weights."""
        return f"weights/{self.name}"

    def begin(self) -> None:
        """Say hello to all who are there, and who come."""
        self.engine.follow(self.topic, self)

    def send(self, peer: Any, word: str, **body: Any) -> None:
        """Say something to a peer."""
        peer.send(self.topic, {"is": word, **body})

    def record(
        self, what: str, version: object, since_ns: int, nbytes: int, *,
        failed: bool = False,
    ) -> None:  # fmt: skip
        """Tell whoever records (`stretto.trace`) of a push, a pull or a switch."""
        kind = CallKind(
            collective="weights", nbytes=nbytes, algorithm=what, executor="transfer",
            text=f"{what} of {self.name!r}, {version}",
        )  # fmt: skip
        observe(WEIGHTS, kind, since_ns, nbytes=nbytes, failed=failed)

    # What is heard, in the engine's thread.

    def came(self, peer: Any) -> None:
        """Say hello."""
        self._say_hello(peer, answer=True)

    def heard(self, peer: Any, body: Mapping[str, Any]) -> None:
        """Deal with a message; what is raised ends the connection with that peer."""
        word = str(body["is"])
        if word not in self._words:
            raise ValueError(f"of weights {self.name!r} it says {word[:40]!r}")
        with self.changed:
            self._words[word](peer, body)
            self.changed.notify_all()

    def lost(self, peer: Any) -> None:
        """Forget a peer, and what it held."""
        with self.changed:
            who = self.known.pop(peer.identity, None)
            for copy in self.copies:
                copy.release(peer)
            if who is not None:
                self.left(who)
            self._call_again()
            self.changed.notify_all()

    def has_twin(self, who: Who) -> bool:
        """Return whether another is there in its place; it is heard when that is gone.

        A source is told, and refuses to push until then.
        """
        place = who.team, who.rank
        for other in self.known.values():
            if other is not who and (other.team, other.rank) == place:
                self.known.pop(who.peer.identity)
                self._twins[place] = who.peer
                why = f"{other.peer.name!r} ({other.peer.whereabouts})"
                if not who.team:
                    self.send(who.peer, "twice", why=f"{why}, by replica {self.team!r}")
                return True
        return False

    def ask_twin(self, who: Who) -> None:
        """Hear the one that came while another, which is gone, was in its place."""
        twin = self._twins.pop((who.team, who.rank), None)
        if twin is not None:
            self._say_hello(twin, answer=True)

    def _bye(self, peer: Any, body: Mapping[str, Any]) -> None:
        self.lost(peer)

    def left(self, who: Who) -> None:
        """Hear that a member is gone."""

    def joined(self, who: Who) -> None:
        """Hear that a member is there, or what it offers now."""

    def _say_hello(self, peer: Any, *, answer: bool) -> None:
        self.send(
            peer, "hello", team=self.team, rank=self.rank, of=self.of,
            metadata=self.engine.metadata, answer=answer, **self.about(),
        )  # fmt: skip

    def about(self) -> dict[str, Any]:
        """Return what others are told of this, beside who it is."""
        coming = next((copy for copy in self.copies if copy.coming), None)
        return {
            "version": str(self._newest() or ""),
            "coming": "" if coming is None else str(coming.coming),
            "via": [] if coming is None else list(coming.via),
        }

    def _newest(self) -> Version | None:
        """Return the newest version that can be read here."""
        found = [copy.version for copy in self.copies if copy.version is not None]
        return max(found, key=lambda version: version.counter, default=None)

    def _hello(self, peer: Any, body: Mapping[str, Any]) -> None:
        who = Who(peer, body)
        self.known[peer.identity] = who
        if body["answer"] is True:
            self._say_hello(peer, answer=False)
        else:  # what was made since our hello, while it was not known here
            self.send(peer, "offer", **self.about())
        self.joined(who)

    def _offer(self, peer: Any, body: Mapping[str, Any]) -> None:
        who = self.known.get(peer.identity)
        if who is not None:
            who.hear(body)
            self.joined(who)

    def tell_offer(self) -> None:
        """Tell everybody what can be read here now."""
        with self.changed:  # so that the last that is told is what is so
            about = self.about()
            for who in self.known.values():
                self.send(who.peer, "offer", **about)

    # Who reads here.

    def _hold(self, peer: Any, body: Mapping[str, Any]) -> None:
        number, version = int(body["number"]), Version.parse(str(body["version"]))
        chain = self.chain(peer, str(body["base"]), version)
        busy = bool(self.fan) and sum(c.readers for c in self.copies) >= self.fan
        busy &= not chain  # changes are few: whoever wants them does not wait
        if self.team and not self.rank:  # it is handed on once, as rank 0 says
            busy |= any(c.coming == version and c.readers for c in self.copies)
        self._has_put_off |= busy
        for copy in self.copies if not busy else ():
            if self._grant(copy, peer, number, version, chain):
                return
        self.send(peer, "held", number=number, well=False, busy=busy)

    def chain(self, peer: Any, base: str, version: Version) -> list[int]:
        """Return the changes by which a peer gets from what it has to a version."""
        return []

    def _grant(
        self, copy: Copy, peer: Any, number: int, version: Version,
        chain: Sequence[int] = (),
    ) -> bool:  # fmt: skip
        """Let a peer read a version, if it is in a copy, and say how."""
        granted = copy.hold(peer, number, version)
        if granted is not None:
            metadata = self.engine.metadata
            self.send(
                peer, "held", number=number, well=True, metadata=metadata,
                identity=metadata["identity"], changes=list(chain), **granted,
            )  # fmt: skip
        return granted is not None

    def tell_early(self, copy: Copy, version: Version | None) -> None:
        """Tell who reads what was coming that it is whole; None: that it will not be.

        He is told the sums then, which he compares with his.
        """
        with self.changed:
            for peer, number in copy.early:
                if version is None:
                    self.send(peer, "held", number=number, well=False, busy=False)
                else:
                    self._grant(copy, peer, number, version)
            if version is None:
                copy.came(FAILED)

    def _watch(self, peer: Any, body: Mapping[str, Any]) -> None:
        token = bytes.fromhex(str(body["token"]))
        for copy in self.copies:
            if copy.watch(peer, token):
                return
        self.send(peer, "far", token=token.hex(), far=FAILED)

    def _release(self, peer: Any, body: Mapping[str, Any]) -> None:
        number = int(body["number"])
        if any(copy.release(peer, number) for copy in self.copies):
            self._call_again()

    def _call_again(self) -> None:
        """Tell those who were put off that they may ask again."""
        if self._has_put_off:
            self._has_put_off = False
            self.tell_offer()

    def _show(self, peer: Any, body: Mapping[str, Any]) -> None:
        """Say who is there, and what they have."""
        here = [(self.team, self.rank, self.of, self.engine.name, self._newest())]
        here += [
            (w.team, w.rank, w.of, w.peer.name, w.offers) for w in self.known.values()
        ]
        newest: dict[str, int] = {}
        for version in (row[-1] for row in here if row[-1]):
            newest[version.epoch] = max(version.counter, newest.get(version.epoch, 0))
        rows = [
            {
                "who": team or "source", "rank": f"{rank} of {of}", "engine": engine,
                "version": str(version or "-"),
                "lag": newest[version.epoch] - version.counter if version else "-",
            }
            for team, rank, of, engine, version in sorted(here, key=lambda r: r[:-1])
        ]  # fmt: skip
        self.send(peer, "shown", rows=rows)

    # The end.

    @property
    def is_over(self) -> bool:
        """Whether nothing is done here any more: a thread may learn it late."""
        return self.is_closed or self.engine.is_closed

    def close(self) -> None:
        """Take all memory back, and say nothing more."""
        with self.changed:
            if self.is_closed:
                return
            self.is_closed = True
            for who in self.known.values():
                self.send(who.peer, "bye")
            self.changed.notify_all()
        self.engine.unfollow(self.topic)
        for copy in self.copies:
            copy.close()

    def __enter__(self) -> Any:
        """Use it for a while."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()


class Mate(Member):
    """A rank of a replica, among its other ranks."""

    puller: Puller
    fault: StrettoError | None
    """Why the last version that was to be had is not here."""

    def mates(self) -> dict[int, Who]:
        """Return the other ranks of this replica that are there."""
        return {
            who.rank: who
            for who in self.known.values()
            if who.team == self.team and who.rank != self.rank
        }

    def tell_ranks(self, word: str, **body: Any) -> None:
        """Say something to all ranks of the replica, this one included."""
        for who in self.mates().values():
            self.send(who.peer, word, **body)
        self._words[word](None, body)
