"""What a kernel leaves in its record, in words."""

from __future__ import annotations

import numpy as np

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, Wait
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.cuda.flags.watch import explain
from stretto.executors.cuda.words import KINDS, RECORD
from stretto.program import algorithms


def proved(name, ranks, schedule):
    """Return a proved plan."""
    program = algorithms.get(name).build(ranks)
    return verify_plan(lower(verify(program), Schedule.parse(schedule)))


def test_records_say_what_happened():
    """Mismatch, told, and a flag that did not come."""
    plan = proved("all_gather/ring", 3, "push bulk staged").value
    record = np.zeros(1, RECORD)[0]
    record["fingerprint"], record["peer"] = 7, 2
    record["kind"], record["differ"], record["step"] = KINDS.index("mismatch"), 4, -1
    assert "ranks [2] called something else" in explain(record, {7: plan})[1]
    record["kind"], record["differ"] = KINDS.index("told"), 0
    assert ([2], True) == _about(record, plan, "rank 2 gave up")
    record["kind"] = KINDS.index("timeout")
    assert ([2], True) == _about(record, plan, "waited for rank 2")


def test_the_wait_that_was_missed_is_found_among_those_at_once():
    """A kernel waits for several in one call, under the number of the first."""
    plan = proved("all_reduce/two_shot", 3, "push bulk zero_copy").value
    waits = [(i, s) for i, s in enumerate(plan.ranks[1][0]) if isinstance(s, Wait)]
    (first, _), *_, (index, last) = waits
    record = np.zeros(1, RECORD)[0]
    record["kind"], record["fingerprint"] = KINDS.index("timeout"), 7
    record["rank"], record["peer"], record["step"] = 1, last.rank, first
    record["epoch"], record["want"] = 5, 5 << 20 | last.n
    text = explain(record, {7: plan})[1]

    assert f"step {index} (wait r{last.rank}.0 n={last.n}" in text


def _about(record, plan, words):
    waiting, text = explain(record, {7: plan})
    return waiting, words in text
