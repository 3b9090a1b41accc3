"""Pass 4, synchronise: every signal and wait that the moves need, and no more.

Walk the moves in their common order and keep, for each rank, what it has heard:
- data put into a rank's memory (not packets): the owner waits before it reads them, and
  before it leaves when they lie in the caller's memory;
- the caller's memory of another rank: not before that rank has entered, and it does not
  leave before it was told that we are done;
- closed: everybody's entry is known to everybody at the end. What data flow does not
  imply is added as credits. From one host to another a credit is a message: there one
  rank says for its whole host to one of the other who has entered.
Signals are numbered last, in the order in which a lane sends them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from stretto.compiler.plan import Loc, Move, Signal, Space, Step, Wait
from stretto.program.ir import Spans


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One signal from a rank to another."""

    src: int
    dst: int
    release: bool = True


@dataclass(slots=True)
class _Send:
    token: Token


@dataclass(slots=True)
class _Await:
    token: Token


_Item = Move | _Send | _Await
_Buffer = tuple[int, Space]
_Place = tuple[int, Space, int]


@dataclass(slots=True)
class _Rank:
    entry: list[_Item] = field(default_factory=list)
    relays: list[_Item] = field(default_factory=list)
    """What follows at once: the entries of its host, heard and said to another host."""
    items: list[_Item] = field(default_factory=list)
    heard: int = 0
    """Bit set of ranks whose entry is known here."""


class _Walk:
    def __init__(
        self,
        num_ranks: int,
        readers: dict[_Place, set[int]],
        hosts: Sequence[Hashable] = (),
    ) -> None:
        self.ranks = [_Rank(heard=1 << r) for r in range(num_ranks)]
        self.hosts: dict[Hashable, list[int]] = {}
        """The ranks of each host."""
        for rank, host in enumerate(hosts or (0,) * num_ranks):
            self.hosts.setdefault(host, []).append(rank)
        self.readers = readers
        """Ranks that will read a place of another rank."""
        self.ready: dict[_Buffer, Spans[tuple[Token, ...]]] = defaultdict(Spans)
        """Signals that a reader of a place must have."""
        self.landed: list[list[int]] = [[] for _ in self.ranks]
        """By rank and unit: bit sets of whose entry its packets tell who reads them."""
        self.knows: dict[Token, int] = {}
        self.entered: dict[tuple[int, int], Token] = {}
        self.had: set[Token] = set()
        self.last_pull: dict[tuple[int, int], int] = {}
        self.at_exit: list[Token] = []

    # What one move needs and gives.

    def add(self, rank: int, move: Move) -> None:
        me = self.ranks[rank]
        # Waits come before the move, signals right behind it: a later place would be
        # as correct, and only let peers wait for longer.
        for src in move.srcs:
            self._before_read(rank, src, move)
        theirs = [dst for dst in move.dsts if dst.rank != rank]
        for dst in theirs:
            if dst.space is not Space.STAGE:
                self._enter(dst.rank, rank, release=False)
        me.items.append(move)
        at = len(me.items)
        told: dict[int, Token] = {}
        width = move.stop - move.start
        for dst in move.dsts if self.readers else theirs:
            if dst.packets:
                units, stop = self.landed[dst.rank], dst.pos + width
                units += [0] * (stop - len(units))
                units[dst.pos : stop] = [me.heard] * width
            else:
                self._tell(rank, dst, move, told)
        for src in move.srcs:
            if src.rank != rank and src.space is not Space.STAGE:
                self.last_pull[rank, src.rank] = at

    def _tell(self, rank: int, dst: Loc, move: Move, told: dict[int, Token]) -> None:
        """Tell whoever reads this location that it was stored: the owner, or peers."""
        stop = dst.pos + move.stop - move.start
        mine = dst.rank == rank
        # What lies here is told to whoever will read it; what lies at another rank, to
        # that rank alone, which tells others if they ask (`_relay`).
        peers = self._readers_of(dst, stop) if mine else [dst.rank]
        for peer in peers:
            if peer not in told:
                told[peer] = self._send(rank, peer)
                if not mine and dst.space is not Space.STAGE:
                    self.at_exit.append(told[peer])
        if peers:
            tokens = tuple(told[peer] for peer in peers)
            self.ready[dst[:2]].write(dst.pos, stop, tokens)

    def _readers_of(self, loc: Loc, stop: int) -> list[int]:
        found: set[int] = set()
        for pos in range(loc.pos, stop):
            found |= self.readers.get((loc.rank, loc.space, pos), set())
        return sorted(found)

    def _before_read(self, rank: int, src: Loc, move: Move) -> None:
        me = self.ranks[rank]
        stop = src.pos + move.stop - move.start
        if src.packets:
            for heard in set(self.landed[src.rank][src.pos : stop]):
                me.heard |= heard
            return
        if src.space is Space.INPUT:
            if src.rank != rank:
                self._enter(src.rank, rank, release=True)
            return
        for _, _, tokens in self.ready[src[:2]].read(src.pos, stop):
            mine = [token for token in tokens if token.dst == rank]
            if src.rank != rank and not mine:
                mine = [self._relay(src.rank, rank, tokens)]
            for token in mine:
                self._await(token)

    def _relay(self, owner: int, reader: int, tokens: tuple[Token, ...]) -> Token:
        """Let the owner of what a third rank stored say that it is there."""
        for token in tokens:
            if token.dst == owner:
                self._await(token)
        return self._send(owner, reader)

    def _send(self, src: int, dst: int, *, release: bool = True) -> Token:
        token = Token(src, dst, release)
        self.ranks[src].items.append(_Send(token))
        self.knows[token] = self.ranks[src].heard
        return token

    def _await(self, token: Token) -> None:
        # Each token is for one rank, so one wait is enough: later moves of its follow.
        if token not in self.had:
            self.had.add(token)
            self.ranks[token.dst].items.append(_Await(token))
            self.ranks[token.dst].heard |= self.knows[token]

    def _enter(self, owner: int, peer: int, *, release: bool) -> None:
        """Make sure the peer knows that the owner has entered."""
        known = self.entered.get((owner, peer))
        if known is None:
            known = self.entered[owner, peer] = Token(owner, peer, release)
            self.ranks[owner].entry.append(_Send(known))
            self.knows[known] = 1 << owner
        # A rank's own input is there before it enters. To read it, the entry has to be
        # released; to store into its memory, not. One signal serves both: the stronger.
        elif release and not known.release:
            stronger = Token(owner, peer, release)
            entry = self.ranks[owner].entry
            at = next(i for i, s in enumerate(entry) if _token(s) is known)
            entry[at] = _Send(stronger)
            self._replace(known, stronger)
            known = self.entered[owner, peer] = stronger
        self._await(known)

    def _replace(self, old: Token, new: Token) -> None:
        self.knows[new] = self.knows[old]
        if old in self.had:
            self.had.add(new)
        for item in self.ranks[old.dst].items:
            if isinstance(item, _Await) and item.token is old:
                item.token = new

    # The end of the call.

    def leave(self) -> None:
        """Let nobody leave while peers still touch the caller's memory."""
        for (reader, owner), at in sorted(self.last_pull.items()):
            # Any later signal to the owner says as well that the reading is over.
            done = self._done_since(reader, owner, at)
            self.at_exit.append(done or self._send(reader, owner, release=False))
        for token in self.at_exit:
            self._await(token)

    def _done_since(self, reader: int, owner: int, at: int) -> Token | None:
        for item in self.ranks[reader].items[at:]:
            if isinstance(item, _Send) and item.token.dst == owner:
                return item.token
        return None

    def close(self) -> None:
        """Add the credits that make the plan closed."""
        # Closed: who leaves a call knows that all have entered it. So nobody is two
        # calls ahead, and two parities of staging and packets are enough.
        n = len(self.ranks)
        everyone = (1 << n) - 1
        self._close_hosts()
        missing = [
            (q, r)
            for r, rank in enumerate(self.ranks)
            if rank.heard != everyone
            for q in range(n)
            if not rank.heard >> q & 1
        ]
        if len(missing) > n * _MANY_CREDITS:
            self._disseminate()
            return
        for owner, peer in missing:
            if (owner, peer) not in self.entered:
                self._enter(owner, peer, release=False)

    def _close_hosts(self) -> None:
        """Let each rank hear of other hosts by the rank at its place of them."""
        if len(self.hosts) < 2 or len(self.ranks) > _MOST_BY_HOST:
            return
        for ranks in self.hosts.values():
            for place, rank in enumerate(ranks):
                for others in self.hosts.values():
                    known = self.ranks[rank].heard
                    missing = [q for q in others if not known >> q & 1]
                    if others is not ranks and missing:
                        self._relay_entries(others[place % len(others)], rank, missing)

    def _relay_entries(self, speaker: int, rank: int, missing: list[int]) -> None:
        """Let a rank say to one of another host that these of its own have entered."""
        relays = self.ranks[speaker].relays
        said = 1 << speaker
        for q in missing:
            if q == speaker:
                continue
            entered = self.entered.get((q, speaker))
            if entered is None:
                entered = self.entered[q, speaker] = Token(q, speaker, release=False)
                self.ranks[q].entry.append(_Send(entered))
                self.knows[entered] = 1 << q
            if all(_token(item) is not entered for item in relays):
                relays.append(_Await(entered))
            self.ranks[speaker].heard |= 1 << q
            said |= 1 << q
        token = Token(speaker, rank, release=False)
        relays.append(_Send(token))
        self.knows[token] = said
        self._await(token)

    def _disseminate(self) -> None:
        """Spread the word in log2 rounds: n log n signals in place of n squared."""
        n, step = len(self.ranks), 1
        while step < n:
            tokens = [self._send(r, (r + step) % n, release=False) for r in range(n)]
            for token in tokens:
                self._await(token)
            step *= 2


_MANY_CREDITS = 16
"""Credits per rank beyond which they are spread in rounds."""
_MOST_BY_HOST = 64
"""Ranks up to which hosts are told of each other directly."""


def synchronise(
    moves: tuple[tuple[int, Move], ...], num_ranks: int, hosts: Sequence[Hashable] = ()
) -> tuple[tuple[Step, ...], ...]:
    """Return every rank's steps: its moves, with the signals and waits they need."""
    walk = _Walk(num_ranks, _readers(moves), hosts)
    for rank, move in moves:
        walk.add(rank, move)
    walk.leave()
    walk.close()
    numbers: dict[Token, int] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for lane in walk.ranks:
        for item in (*lane.entry, *lane.relays, *lane.items):
            if isinstance(item, _Send):
                channel = (item.token.src, item.token.dst)
                counts[channel] += 1
                numbers[item.token] = counts[channel]
    return tuple(_number(lane, numbers) for lane in walk.ranks)


def _readers(moves: tuple[tuple[int, Move], ...]) -> dict[_Place, set[int]]:
    readers: dict[_Place, set[int]] = defaultdict(set)
    for rank, move in moves:
        for src in move.srcs:
            if src.rank != rank and src.space is not Space.INPUT:
                for i in range(move.stop - move.start):
                    readers[src.rank, src.space, src.pos + i].add(rank)
    return readers


def _number(rank: _Rank, numbers: dict[Token, int]) -> tuple[Step, ...]:
    steps: list[Step] = []
    waited: Counter[int] = Counter()
    for item in (*rank.entry, *rank.relays, *rank.items):
        match item:
            case Move():
                steps.append(item)
            case _Send(token):
                steps.append(Signal(token.dst, 0, numbers[token], token.release))
            case _Await(token):
                if numbers[token] > waited[token.src]:
                    waited[token.src] = numbers[token]
                    steps.append(Wait(token.src, 0, numbers[token]))
    return tuple(steps)


def _token(item: _Item) -> Token | None:
    return None if isinstance(item, Move) else item.token
