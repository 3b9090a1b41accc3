"""A plan in parts is the plan: whoever reads one rank of it reads no other."""

from dataclasses import replace

import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, pack, parts, reach, unpack
from stretto.compiler.verify import verify
from stretto.program import algorithms

SCHEDULES = ("push packets", "push bulk", "pull bulk zero_copy")


def plans(num_ranks, hosts=()):
    """Yield plans of all algorithms that serve so many ranks."""
    for name in algorithms.names():
        one = algorithms.get(name)
        if one.refuses(num_ranks) or name.startswith("permute"):
            continue
        options = {"hosts": hosts} if hosts and one.knows_hosts else {}
        program = verify(one.build(num_ranks, **options))
        for words in SCHEDULES[:1] if hosts else SCHEDULES:
            how = Schedule.parse(words)
            yield lower(program, how, in_place=words[:4] == "push", hosts=hosts)


@pytest.mark.parametrize("hosts", [(), (0, 0, 1, 1)], ids=["one", "two"])
def test_what_is_unpacked_is_what_was_packed(hosts):
    """Equal, printed alike, known by its digest; lines of authors included."""
    for plan in plans(4, hosts):
        found = unpack(pack(plan))

        assert plan == found
        assert str(plan) == str(found)
        assert (plan.digest, plan.places) == (found.digest, found.places)
        assert hash(plan) == hash(found)
        assert plan.ranks[-1] == found.ranks[-1]
        assert tuple(plan.ranks[1:3]) == found.ranks[1:3]


@pytest.mark.parametrize("n", [2, 5])
def test_what_is_said_of_the_others_is_what_their_steps_say(n):
    """Of a plan whose steps are there, and of one that is read back."""
    for plan in plans(n):
        want, got = reach(plan), reach(unpack(pack(plan)))

        assert list(want.writers) == list(got.writers)
        assert replace(want, writers=()) == replace(got, writers=())


def test_a_rank_reads_its_own_steps_and_no_others(monkeypatch):
    """Neither its digest nor what must be known of the others needs their steps."""
    plan = lower(verify(algorithms.get("all_reduce/two_shot").build(16)), Schedule())
    packed, read = pack(plan), []
    monkeypatch.setattr(
        parts, "parse_lanes", lambda rank, text: read.append(rank) or plan.ranks[rank]
    )
    found = unpack(packed)
    said = reach(found)

    assert plan.digest == found.digest
    assert (said.bulk, len(said.writers)) == (True, 16)
    assert plan.ranks[3] == found.ranks[3]
    assert said.writers[3] == reach(plan).writers[3]
    assert plan.ranks[3] == replace(found, name="other").ranks[3]
    assert [3] == read


def test_a_changed_plan_has_a_digest_of_its_own():
    """The digest that was read belongs to the text that was packed."""
    plan = lower(verify(algorithms.get("all_reduce/ring").build(4)), Schedule())
    found = unpack(pack(plan))
    other = replace(found, schedule=Schedule(blocks=2))

    assert replace(plan, schedule=Schedule(blocks=2)).digest == other.digest
    assert plan.digest != other.digest
