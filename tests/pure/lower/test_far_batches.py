"""Plans over hosts as kernels run them: in batches that disturb nobody."""

import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.program import algorithms

NAMES = [n for n in algorithms.names() if algorithms.get(n).kernel is None]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("words", ["push packets", "push bulk"])
@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 0, 1)])
def test_the_whole_catalogue_runs_in_batches_over_hosts(hosts, words, in_place):
    """It proves what it makes: what reads an input is not beside what covers it."""
    n = len(hosts)
    for name in NAMES:
        one = algorithms.get(name)
        if one.refuses(n) is not None:
            continue
        params = {"hosts": hosts} if one.knows_hosts else {}
        if one.collective == "permute":
            params["pairs"] = tuple((r, (r + 1) % n) for r in range(n))
        program = verify(one.build(n, **params))
        plan = lower(program, Schedule.parse(words), in_place=in_place, hosts=hosts)

        assert verify_plan(plan, program).batched().plan.hosts == hosts
