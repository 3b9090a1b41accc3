"""Libraries beside each other: the same cases, in turns, what has arrived compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from stretto.bench import peers
from stretto.bench.child import Child
from stretto.bench.contender import NOWHERE, CallBuffer, Contender, PreparedCall
from stretto.bench.measuring.control import Control
from stretto.bench.measuring.loop import Limits, Timings, measure
from stretto.bench.peers._side import MovingSide
from stretto.bench.workload.moves import MoveCase
from stretto.errors import CallError, MissingExtraError, StrettoError

TURNS = 3
TURN_US = 0.3e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a library is not among them: it is missing, has no such way, or failed."""

    who: str
    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """What a library took for a case: the median of all rounds, and 99 % of them."""

    what: str
    path: str
    nbytes: int
    pieces: int
    us: float
    p99_us: float
    who: str
    is_right: bool
    """Whether what has arrived is what was sent, where it is looked at."""
    scheme: str = ""

    def as_json(self) -> dict[str, object]:
        """Return it as tables and documents have it; GB are 10^9 bytes."""
        rate = self.nbytes / max(self.us, 1e-3) / 1e3
        return {
            "scheme": self.scheme, "what": self.what, "who": self.who,
            "path": self.path, "pieces": self.pieces, "us": round(self.us, 3),
            "p99_us": round(self.p99_us, 2), "GB/s": round(rate, 2),
            "right": self.is_right,
        }  # fmt: skip


class Couple(Contender):
    """A library's two processes; they start together, and are there once they `meet`.

    So that all may start before the first is waited for.
    """

    def __init__(self, name: str, path: str, nbytes: int) -> None:
        made = peers.get(name, MovingSide)
        if why := made.missing():
            raise MissingExtraError(why)
        if path not in made.PATHS:
            raise MissingExtraError(f"{name} has no way by {path}")
        self.name, self._whats = name, made.WHATS
        self._sides: dict[str, Child] = {}
        try:
            for role in ("there", "here"):
                self._sides[role] = Child(
                    f"{name}, {role}", made, role, path, nbytes,
                    environment=made.environment(path),
                )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def meet(self) -> None:
        """Wait until both are there, and introduce them."""
        there, here = self._sides["there"], self._sides["here"]
        for side in (there, here):
            side.hear()
        about = [side.ask("about") for side in (there, here)]
        there.tell("meet", said=about[1])
        here.tell("meet", said=about[0])
        for side in (there, here):
            side.hear()

    def prepare(self, case: MoveCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind a case; its bytes lie with the two."""
        if case.what not in self._whats:
            raise CallError(f"it has no {case.what}")
        return PreparedCall(
            call=partial(self.turn, case, 1), rounds=partial(self.turn, case),
            fill=partial(self.fill, case), wrong=partial(self.wrong, case),
        )  # fmt: skip

    def turn(self, case: MoveCase, rounds: int) -> list[float]:
        """Do a case for a turn; return the microseconds of its rounds."""
        there, asked = self._sides["there"], {"case": asdict(case), "rounds": rounds}
        there.ask("serve", **asked)
        try:
            return list(self._sides["here"].ask("time", **asked))
        finally:
            there.tell("over")
            there.hear()

    def fill(self, case: MoveCase) -> None:
        """Store a case's bytes where they are taken from, and none at the other end."""
        for side in self._sides.values():
            side.ask("fill", case=asdict(case))

    def wrong(self, case: MoveCase) -> str:
        """Return what is wrong with what has arrived; nothing when all is right."""
        side = self._sides["here" if case.what == "get" else "there"]
        if case.what == "notify" or side.ask("is_right", case=asdict(case)):
            return ""
        return "what has arrived is not what was sent"

    def pids(self) -> list[int]:
        """Return both processes."""
        return [side.pid for side in self._sides.values()]

    def close(self) -> None:
        """End both."""
        for side in self._sides.values():
            side.close()


def in_turns(
    running: Mapping[str, Contender], case: MoveCase, turns: int = TURNS
) -> dict[str, Timings]:
    """Return what was found of each in so many turns, in which all have theirs."""
    limits = Limits(batch_us=TURN_US, batches=turns, fewest=turns, budget_us=0.0)
    both = NOWHERE, NOWHERE
    return measure(Control(), case, running, *both, limits=limits, seed=0)


def row_of(
    who: str, case: MoveCase, found: Timings, what: str = ""
) -> TransferRow | Refusal:
    """Return what was found of one, in a row; or why there is nothing."""
    if found.refused:
        why = found.note.partition(": ")[2] if found.broke_at is None else found.note
        return Refusal(who=who, path=case.path, why=why)
    middle, most = np.percentile(found.us, (50, 99))
    return TransferRow(
        who=who, what=what or case.label, path=case.path, nbytes=case.total,
        pieces=case.count, us=float(middle), p99_us=float(most),
        is_right=not found.wrong,
    )  # fmt: skip


def contest(
    who: Sequence[str], path: str, cases: Sequence[MoveCase], *, turns: int = TURNS
) -> Iterator[TransferRow | Refusal]:
    """Yield what each library takes for each case, and who is not among them.

    They take turns, so that what else the machine does meets all alike. Who fails is
    called no more.
    """
    most = max([1, *(case.total for case in cases)])
    running: dict[str, Couple] = {}
    try:
        for name in who:
            try:
                running[name] = Couple(name, path, most)
            except StrettoError as e:
                yield Refusal(who=name, path=path, why=str(e))
        for one in tuple(running.values()):
            try:
                one.meet()
            except StrettoError as e:
                running.pop(one.name).close()
                yield Refusal(who=one.name, path=path, why=str(e))
        for case in cases:
            for name, found in in_turns(running, case, turns).items():
                if found.broke_at is not None:
                    running.pop(name).close()
                    found.note = f"{case.label}: {found.note}"
                yield row_of(name, case, found)
    finally:
        for one in running.values():
            one.close()
