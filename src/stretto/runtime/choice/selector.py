"""Answer questions of selection: a pin, a profile, or the simulator, in that order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from stretto import caches, topology
from stretto.compiler.plan import Schedule
from stretto.errors import CallError, StrettoError
from stretto.executors import Session
from stretto.program import algorithms
from stretto.runtime.choice.beside import Beside
from stretto.runtime.choice.bits import ANY, PAIRS
from stretto.runtime.choice.kept import KEPT_FROM, are_shipped, kept_at
from stretto.runtime.choice.plans import plan_of, works
from stretto.runtime.choice.question import (
    MOST_SIMULATED,
    NO_SEATS,
    STAGED,
    Choice,
    Question,
)
from stretto.runtime.choice.rowrules import RowRule
from stretto.runtime.choice.seats import is_full, machine_at
from stretto.runtime.choice.select import (
    PACKETS_UP_TO,
    Pin,
    Profile,
    candidates,
    parse_pin,
    plain_schedule,
    possible,
)

_POWER = "; pairs are of 2, 4, 8, ... ranks"
_ALIKE = 1.02
"""Of large calls over hosts, simulated times that differ by less count as equal."""


class Selector:
    """The choices of one executor in one process."""

    def __init__(
        self,
        executor: str,
        profile: Profile | None = None,
        sessions: Mapping[str, Session] | None = None,
        shipped: Profile | None = None,
    ) -> None:
        """Start with a measured profile, or with the one that is shipped.

        A session of the executor, once there is one, is asked what it refuses.
        """
        self._executor = executor
        self._sessions = {} if sessions is None else sessions
        shipped = Profile.shipped(executor) if shipped is None else shipped
        ours = profile is not None and profile.executor == executor
        self._profiles = [profile, shipped] if ours and profile else [shipped]
        self._known: dict[tuple[Question, Pin, bool], Choice] = {}

    def choose(self, asked: Question, pin: Pin = None) -> Choice:
        """Return what serves a call."""
        here = self._executor in self._sessions
        key = (replace(asked, nbytes=_class(asked.nbytes)), pin, here)
        found = self._known.get(key)
        if found is None:
            if pin is None:
                found = self._best(key[0])
            elif isinstance(pin, Beside):
                found = self._beside(key[0], pin)
            else:
                found = self._pinned(asked, pin)
            self._known[key] = found
        return found

    def rows(self, num_ranks: int) -> RowRule:
        """Return how rows of epilogues are divided; what is shipped is for all."""
        found = [p.rows_of(num_ranks) for p in self._profiles]
        said = next((one for one in found if one is not None), None)
        assert said is not None, "a shipped profile has rows for every executor"
        return said

    def _pinned(self, asked: Question, pin: Pin) -> Choice:
        assert pin is not None
        assert not isinstance(pin, Beside)
        algorithm, schedule = parse_pin(pin)
        if algorithm.collective != asked.collective:
            raise CallError(
                f"algorithm={algorithm.name!r} for {asked.collective}; want one of "
                f"{asked.collective}/..."
            )
        if reason := algorithm.refuses(asked.num_ranks):
            raise CallError(reason)
        if schedule is not None:
            return Choice(algorithm, schedule)
        for one in (asked, replace(asked, memory=STAGED, in_place=True)):
            found = Choice(algorithm, plain_schedule(one))
            if works(found, one):
                return found
        return Choice(algorithm, Schedule())

    def _beside(self, asked: Question, pin: Beside) -> Choice:
        """Return what leaves most of a GPU to others: a row for that, or few blocks."""
        told = self._told(replace(asked, beside=True))
        found = told or self._best(asked)
        few = pin.schedule(found.schedule, asked.nbytes, measured=told is not None)
        fewer = found._replace(schedule=few)
        fits = works(fewer, asked) and self._usable(fewer, asked)
        return fewer if fits else found

    def _told(self, asked: Question) -> Choice | None:
        """Return what a profile says, the user's before ours.

        The user's was measured on the machine that a job names, with all its places
        taken; ours on others, and with ranks of which nobody knew how they sat.
        """
        for profile in self._profiles:
            full = profile is not self._profiles[-1] and is_full(asked.seats)
            said = replace(asked, seats=NO_SEATS) if full else asked
            found = profile.choose(said, lambda one: self._usable(one, asked))
            if found is not None:
                return found
        return None

    def _best(self, asked: Question) -> Choice:
        found = self._told(asked) or _searched(asked, lambda: self._search(asked))
        if found is None:
            how = "" if asked.bits == ANY else f" with bits={asked.bits!r}"
            raise CallError(
                f"no algorithm of {asked.collective} serves {asked.num_ranks} ranks"
                f"{how}{_POWER if asked.bits == PAIRS else ''}"
            )
        return found

    def _search(self, asked: Question) -> Choice | None:
        """Return the cheapest by the simulator; of many ranks, the first that works."""
        if asked.num_ranks > MOST_SIMULATED:
            some = _for_many(possible(asked), asked)
            return next((option for option in some if works(option, asked)), None)
        costs = [
            (self.expected(option, asked), i, option)
            for i, option in enumerate(self._competing(asked))
        ]
        if not costs:
            return None
        if asked.hosts and asked.nbytes > PACKETS_UP_TO * asked.num_ranks:
            return _about_cheapest(costs)
        return min(costs, key=lambda c: c[:2])[2]

    def _competing(self, asked: Question) -> Iterator[Choice]:
        """Yield what is simulated; on a named machine, first what a profile says.

        It was measured with as many ranks, and not with just these.
        """
        if asked.seats[1]:
            told = self._told(replace(asked, seats=NO_SEATS))
            yield from () if told is None else (told,)
        yield from candidates(asked)

    def _usable(self, option: Choice, asked: Question) -> bool:
        """Return whether the executor runs it here; all ranks' answer alike."""
        session = self._sessions.get(self._executor)
        return session is None or not session.refuses(plan_of(option, asked))

    def expected(self, option: Choice, asked: Question) -> float:
        """Return the simulated microseconds; infinite where the simulator has none."""
        from stretto.executors import sim  # few calls are chosen so

        plan = plan_of(option, asked)
        try:
            if asked.seats[1]:
                machine = machine_at(asked.seats)
            elif asked.hosts:
                machine = topology.assumed_hosts(self._executor, asked.hosts)
            else:
                name = topology.assumed(self._executor, asked.num_ranks)
                machine = topology.load(name)
            found = sim.simulate(
                plan, machine, nbytes=asked.nbytes, ranks=asked.seats[1]
            )
        except StrettoError:
            return math.inf
        return float(found.time_us)


def _about_cheapest(costs: Iterable[tuple[float, int, Choice]]) -> Choice:
    """Return the first of those that cost no more than the model can tell apart."""
    found = list(costs)
    least = min(cost for cost, _, _ in found)
    return next(one for cost, _, one in found if cost <= _ALIKE * least)


def _for_many(options: Iterable[Choice], asked: Question) -> Iterable[Choice]:
    """Return options with those first that suit many ranks.

    On one host nothing is gained by handing on what is to stay as it is: whoever needs
    it fetches it. On several it depends on what crosses between them.
    """
    if not asked.hosts and asked.collective == "all_reduce":
        return options
    if not asked.hosts:
        return sorted(options, key=lambda o: not o.algorithm.name.endswith("one_shot"))
    large = asked.nbytes > PACKETS_UP_TO
    protocol = "bulk" if large else "packets"

    def rank(option: Choice) -> tuple[bool, bool, bool]:
        algorithm, schedule = option
        crossing = len(set(asked.hosts)) > 2 and large
        return (
            not algorithm.knows_hosts,
            algorithm.name.endswith("two_shot") != crossing,
            schedule.protocol != protocol,
        )

    return sorted(options, key=rank)


def _searched(asked: Question, search: Callable[[], Choice | None]) -> Choice | None:
    """Return what is found for a question, by one process of several that ask it.

    Only among what comes with the library: of nothing else is known that all have the
    same. On one host few ranks find it sooner by themselves: a table says most of it.
    """
    known = algorithms.of(asked.collective, asked.num_ranks)
    simulated = [one for one in known if one.kernel is None]
    are_few = asked.num_ranks < KEPT_FROM and not asked.hosts
    if are_few or asked.seats[1] or not are_shipped(simulated):
        return search()
    path = kept_at("choices", repr(asked), *(one.name for one in simulated))
    text = caches.once(path, lambda: str(search()).encode()).decode()
    if text == str(None):
        return None
    algorithm, schedule = parse_pin(text)
    return Choice(algorithm, schedule or Schedule())


def _class(nbytes: int) -> int:
    """Return the size that stands for sizes like it: the next power of two."""
    return 1 << max(0, nbytes - 1).bit_length()
