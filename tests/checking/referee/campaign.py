"""The proof and the referee side by side, over many plans: whoever disagrees is noted.

A task is a number, and what it draws: a mutant of some plan, a random program, calls of
several plans that follow one another, or (every one of them, one a task) a plan of the
catalogue in wide scopes. What the proof accepts must be right; what it refuses should
be wrong, or be in a class of refusals that are on the safe side, which are listed.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.checking.cases import SCHEDULES
from tests.checking.mutants import program_mutants
from tests.checking.plan_mutants import plan_edits
from tests.checking.referee.calls import Call
from tests.checking.referee.draw import draw_program
from tests.checking.referee.explore import explore, run_at_random
from tests.checking.referee.judge import judge, judge_plan, program_verdict
from tests.checking.referee.machine import Machine
from tests.checking.referee.rewritten import (
    ON_ENGINE,
    judge_rewritten,
    mutants_of,
    rewrites_of,
)
from tests.checking.referee.scopes import (
    cut,
    paired,
    scopes,
    touches_peers,
    unequal,
)
from tests.checking.referee.subjects import catalogue, listed
from tests.checking.referee.verdict import Fault, Outcome, Verdict

from stretto.compiler.lower import lower
from stretto.compiler.plan import Plan, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError
from stretto.program.ir import Program, Verified

__all__ = ["TASKS", "Found", "catalogue", "refusal_class", "run_task"]

MIXED = (
    "push packets staged copy:bulk",
    "push bulk staged copy:pull",
    "pull bulk staged copy:push+packets",
    "push bulk staged one:pull two:packets",
    "pull bulk zero_copy copy:push+packets+staged",
)
"""Schedules with phases, beside those of `SCHEDULES`."""


@dataclass(slots=True)
class Found:
    """What tasks found, to be added up."""

    counts: Counter[str] = field(default_factory=Counter)
    """Subjects by task, by whether they were accepted, and by outcome."""
    accepted_wrong: Counter[str] = field(default_factory=Counter)
    refused_right: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """Of each class of disagreement, the first one."""

    def add(self, other: Found) -> None:
        """Add what another found."""
        self.counts.update(other.counts)
        self.accepted_wrong.update(other.accepted_wrong)
        self.refused_right.update(other.refused_right)
        for key, text in other.examples.items():
            self.examples.setdefault(key, text)

    def note(
        self,
        task: str,
        what: str,
        refusal: str | None,
        verdict: Verdict,
        *subject: object,
    ) -> None:
        """Count one subject: why it was refused (None: it was not), and the verdict.

        The subject is spelt when it becomes an example.
        """
        said = "refused" if refusal is not None else "accepted"
        self.counts[f"{task} {said} {verdict.outcome.name}"] += 1
        if verdict.outcome is Outcome.UNDECIDED:
            return
        if refusal is None and not verdict.right:
            key = f"{task}: {verdict.outcome.name}: {class_of(what)}"
            self.accepted_wrong[key] += 1
            if key not in self.examples:
                self.examples[key] = "\n".join(map(str, (what, verdict, *subject)))
        if refusal is not None and verdict.right:
            key = f"{task}: {refusal_class(refusal)}"
            self.refused_right[key] += 1
            if key not in self.examples:
                self.examples[key] = "\n".join(map(str, (what, refusal, *subject)))


SAFE = {
    "not closed": "closed, also where there is nothing to protect",
    "they rise": "signals of a channel rise: none is said twice",
    "want the opposite": "what is final is marked, also where nothing is divided",
    "is finished": "what is final is marked, also where nothing is divided",
    "a second time": "a unit of staging is stored once an epoch",
    "nobody reads": "a unit of staging that is stored is read",
    "a lane does not signal itself": "lanes signal others",
    "has 1 lanes": "signals and waits name lanes that there are",
    "input is never written": "inputs are not written, be it with what they hold",
    "do not cover all symbols": "atoms are all symbols, each once",
    " buffers": "buffers hold what the collective says, also what nobody moves",
    "holds atoms": "operands have the move's atoms, also of what is overwritten later",
    "read by their owner": "packets are read by their owner",
    "may still be reading what": "a unit of staging is packets or plain data, not both",
}
"""Refusals on the safe side: what is said, and the rule that is kept. Such plans may
compute the right thing; nobody makes them."""


def refusal_class(text: str) -> str:
    """Return the rule that a refusal keeps, or its text without particulars."""
    rules = (f"safe: {rule}" for said, rule in SAFE.items() if said in text)
    return next(rules, class_of(text))


def class_of(text: str) -> str:
    """Return a text without what differs from case to case."""
    last = text.rsplit(".py:", 1)[-1].split("\n", 1)[0]
    last = re.sub(r"\((?:[^()]|\([^()]*\))*\)", "()", last)
    last = re.sub(r"r?\d+(\.\d+)?", "#", last)
    parts = last.split(": ")
    return ": ".join(parts[-2:])[:120]


def refused(proof: Callable[..., object], *subject: object) -> str | None:
    """Return why a proof refuses a subject, or None."""
    try:
        proof(*subject)
    except StrettoError as e:
        return str(e)
    return None


def _prove(plan: Plan, program: Verified[Program]) -> None:
    """Prove a plan as calls do: staged ones that may be in place, for both."""
    verify_plan(plan, program)
    if plan.in_place and not touches_peers(plan):
        verify_plan(replace(plan, in_place=False), program)


def _judged(plan: Plan, program: Program, *, wide: bool = False) -> Verdict:
    """Judge a plan in all the ways in which it may be called."""
    verdict = judge_plan(plan, program, wide=wide)
    if verdict.right and plan.in_place and not touches_peers(plan):
        apart: frozenset[int] = frozenset()
        return judge_plan(plan, program, in_place=apart, wide=wide)
    return verdict


# Tasks.


def run_task(task: str, seed: int) -> Found:
    """Return what one task found."""
    found = Found()
    TASKS[task](found, random.Random(f"{task} {seed}"), seed)
    return found


def _mutants(found: Found, rng: random.Random, seed: int) -> None:
    """Judge some mutants of one plan, a few of them with two things wrong."""
    label, proved, plan = _drawn_plan(rng)
    program = proved.value
    edits = list(plan_edits(plan))
    for _ in range(min(40, len(edits))):
        what, make = rng.choice(edits)
        mutant = make()
        if rng.random() < 0.15:
            more = list(plan_edits(mutant))
            also, make = rng.choice(more)
            what, mutant = f"{what}, {also}", make()
        why = refused(_prove, mutant, proved)
        verdict = _judged(mutant, program)
        told = f"{what}: seed {seed}: {label} {plan.schedule}"
        if why is not None and verdict.right and not _safe(why):
            verdict = _judged(mutant, program, wide=True)
        found.note("mutants", _first(what), why, verdict, told, mutant)


def _programs(found: Found, rng: random.Random, seed: int) -> None:
    """Judge a random program that is right, two that may not be, and their plans."""
    program = draw_program(rng, rng.randint(1, 4))
    edits = list(program_mutants(program))
    for what, one in [("drawn", program), *rng.sample(edits, min(2, len(edits)))]:
        why = refused(verify, one)
        verdict = program_verdict(one)
        told = f"seed {seed}: {what}"
        found.note("programs", _first(what), why, verdict, told, one)
        if why is None and verdict.right:
            _plans_of(found, rng, one, told)


def _plans_of(found: Found, rng: random.Random, program: Program, told: str) -> None:
    schedule = Schedule.parse(rng.choice(SCHEDULES + MIXED))
    in_place = rng.random() < 0.5
    proved = verify(program)
    try:
        plan = lower(proved, schedule, in_place=in_place)
    except StrettoError as e:
        found.counts[f"plans not lowered: {class_of(str(e))}"] += 1
        return
    why = refused(_prove, plan, proved)
    place = "in place" if in_place else "not in place"
    memory = "zero_copy" if touches_peers(plan) else "staged"
    verdict = judge_plan(plan, program, wide=rng.random() < 0.02)
    what = f"{program.collective} {memory} {place}"
    subject = (told, program, plan)
    found.note("plans", what, why, verdict, *subject)
    if why is None and in_place and memory == "staged":
        verdict = _in_place_on_some(rng, plan, program)
        found.note("plans", f"{what} on some", why, verdict, *subject)


def _in_place_on_some(rng: random.Random, plan: Plan, program: Program) -> Verdict:
    """Return what comes of calls in place on some of the ranks that can be."""
    verdict = Verdict(outcome=Outcome.RIGHT)
    for scope in scopes(plan, program):
        calls = [
            replace(c, in_place=frozenset(r for r in c.in_place if rng.random() < 0.5))
            for c in scope.calls
        ]
        verdict = judge(calls, threads=scope.threads)
        if not verdict.right:
            break
    return verdict


def _rewritten(found: Found, rng: random.Random, seed: int) -> None:
    """Judge what rewrites make of a plan, as it runs, and mutants of that."""
    texts = ON_ENGINE if rng.random() < 0.6 else SCHEDULES + MIXED
    label, proved, plan = _drawn_plan(rng, texts=texts)
    program, told = proved.value, f"seed {seed}: {label} {plan.schedule}"
    means = verify_plan(plan, proved)
    try:
        every = list(rewrites_of(means))
    except StrettoError as e:
        found.counts[f"rewritten not made: {class_of(str(e))}"] += 1
        return
    for one in every:
        why = refused(one.prove, means)
        verdict = judge_rewritten(one, program)
        found.note("rewritten", one.how, why, verdict, told, one.plan)
        for what, mutant in mutants_of(one, rng, 12):
            why = refused(mutant.prove, means)
            verdict = judge_rewritten(mutant, program)
            what = f"{one.how}: {_first(what)}"
            mine = (told, mutant.plan, mutant.groups)
            found.note("rewrite_mutants", what, why, verdict, *mine)


def _sequences(found: Found, rng: random.Random, seed: int) -> None:
    """Judge calls of two or three plans that follow one another, in all their cuts."""
    n = rng.randint(2, 4)
    chosen = [_drawn_plan(rng, n) for _ in range(rng.randint(2, 3))]
    calls = []
    for _, proved, plan in chosen:
        pattern = tuple(rng.randint(0, 3) for _ in range(rng.randint(1, 4)))
        extra, mirrored = rng.choice((0, 0, 1, -1)), rng.random() < 0.5
        counts = unequal(plan, pattern, extra, mirrored=mirrored)
        if plan.in_place and touches_peers(plan):
            counts = unequal(plan, (rng.randint(1, 3),))  # else they are staged
        call = Call(
            plan=cut(plan, rng.choice((1, 1, 2, 3))),
            counts=counts,
            most=rng.choice((1, 1, 2, 8)),
            in_place=paired(plan, counts),
            program=proved.value,
        )
        calls += [call] * rng.choice((1, 1, 2))
    rng.shuffle(calls)
    threads = rng.random() < 0.5
    verdict = judge(calls, threads=threads)
    told = "; ".join(f"{label} {plan.schedule}" for label, _, plan in chosen)
    found.note("sequences", "of proved plans", None, verdict, f"seed {seed}: {told}")


def _explored(found: Found, rng: random.Random, seed: int) -> None:
    """Hold the referee against itself: what must be ordered, and what really comes."""
    label, proved, plan = _drawn_plan(rng)
    program = proved.value
    edits = list(plan_edits(plan))
    what, mutant = ("nothing", plan)
    if rng.random() < 0.8:
        what, make = rng.choice(edits)
        mutant = make()
    scope = rng.choice(list(scopes(mutant, program)))
    weak = rng.random() < 0.7
    by_order = judge(scope.calls, threads=scope.threads, weak=weak)
    by_runs = Outcome.RIGHT
    told = f"{what}: seed {seed}: {label} {plan.schedule}"
    try:
        machine = Machine(scope.calls, threads=scope.threads)
        explore(machine, weak=weak, bound=4_000)
        for one in range(3):
            run_at_random(machine, seed + one, weak=weak)
    except Fault as e:
        by_runs = e.outcome
    agree = by_order.right == (by_runs is Outcome.RIGHT)
    word = "agree" if agree else f"{by_order.outcome.name} but {by_runs.name}"
    found.counts[f"explored {word}"] += 1
    if not agree and by_runs is not Outcome.UNDECIDED:
        key = f"explored: {word}"
        found.examples.setdefault(key, f"{told}\n{scope}\n{by_order}")
        if by_order.right:
            found.accepted_wrong[key] += 1


def _catalogue(found: Found, rng: random.Random, seed: int) -> None:
    """Judge one plan of the catalogue in wide scopes, and by running all its orders."""
    label, program, text, in_place = catalogue()[seed % len(catalogue())]
    proved = verify(program)
    try:
        plan = lower(proved, Schedule.parse(text), in_place=in_place)
    except StrettoError as e:
        found.counts[f"catalogue not lowered: {class_of(str(e))}"] += 1
        return
    why = refused(_prove, plan, proved)
    what = f"{program.collective} {text}{' in place' * in_place}"
    verdict = judge_plan(plan, program, wide=why is None)
    found.note("catalogue", what, why, verdict, label, plan)
    if why is None and in_place and not touches_peers(plan):
        for _ in range(2):
            verdict = _in_place_on_some(rng, plan, program)
            found.note("catalogue", what, None, verdict, label, plan)
    if why is None and verdict.right:
        for weak in (True, False):
            for scope in scopes(plan, program):
                try:
                    explore(Machine(scope.calls, threads=scope.threads), weak=weak)
                except Fault as e:
                    verdict = Verdict(outcome=e.outcome, text=e.text, trace=e.trace)
                    found.note("catalogue", what, None, verdict, label, plan)
                found.counts["catalogue explored"] += 1


TASKS: dict[str, Callable[[Found, random.Random, int], None]] = {
    "mutants": _mutants,
    "programs": _programs,
    "sequences": _sequences,
    "rewritten": _rewritten,
    "explored": _explored,
    "catalogue": _catalogue,
}
"""What a campaign does, by name."""


# Where subjects come from.


def _drawn_plan(
    rng: random.Random, num_ranks: int = 0, texts: tuple[str, ...] = ()
) -> tuple[str, Verified[Program], Plan]:
    """Return a random plan that the proof accepts, of the catalogue or drawn."""
    while True:
        n = num_ranks or rng.choice((1, 2, 2, 3, 3, 3, 4))
        if rng.random() < 0.3:
            label, program = "drawn", draw_program(rng, n)
        else:
            label, program = rng.choice(listed(n))
        text = rng.choice(texts or SCHEDULES + (MIXED if rng.random() < 0.3 else ()))
        in_place = rng.random() < 0.4
        try:
            proved = verify(program)
            plan = lower(proved, Schedule.parse(text), in_place=in_place)
            _prove(plan, proved)
        except StrettoError:
            continue
        return label, proved, plan


def _safe(why: str) -> bool:
    """Return whether a refusal is one whose plans can be right in all scopes."""
    rule = refusal_class(why)
    return rule.startswith("safe") and "operands" not in rule


def _first(what: str) -> str:
    """Return the kind of a mutation, or of two: without where."""
    return re.sub(r" at r\d+\.\d+ step \d+", "", what)
