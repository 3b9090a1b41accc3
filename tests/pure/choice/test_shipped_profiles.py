"""What the shipped profiles of GPUs choose."""

import pytest

from stretto.runtime.choice import Profile, Question
from stretto.runtime.choice.selector import Selector

SIZES = [1 << n for n in range(10, 31, 2)]


def choice(collective, nbytes, ranks, memory, in_place):
    asked = Question(
        executor="cuda", collective=collective, num_ranks=ranks,
        nbytes=nbytes, memory=memory, in_place=in_place,
    )  # fmt: skip
    return str(Profile.shipped("cuda").choose(asked))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
)
def test_they_answer_for_all_sizes(collective, ranks):
    """Staged memory gets no zero-copy."""
    for nbytes in SIZES:
        for memory, in_place in (("staged", False), ("zero_copy", True)):
            pin = choice(collective, nbytes, ranks, memory, in_place)
            assert pin.startswith(f"{collective}/")
            assert memory == "zero_copy" or "zero_copy" not in pin


@pytest.mark.parametrize(
    ("collective", "plainest"),
    [("all_reduce", "one_shot"), ("all_gather", "one_shot"), ("reduce", "flat")],
)
@pytest.mark.parametrize("memory", ["staged", "zero_copy"])
def test_one_rank_alone_copies_by_the_plainest_algorithm(collective, plainest, memory):
    """All are one copy there; nobody should read of trees."""
    asked = Question(
        executor="cuda",
        collective=collective,
        num_ranks=1,
        nbytes=1 << 20,
        memory=memory,
        params=(("root", 0),) if collective == "reduce" else (),
    )
    chosen = Selector("cuda").choose(asked)

    assert f"{collective}/{plainest}" == chosen.algorithm.name
    assert memory == chosen.schedule.memory


def test_two_ranks_have_a_table_of_their_own():
    """A sum of small arrays takes one hop there; large ones are bulk for all."""
    small, large = (
        [choice("all_reduce", n, ranks, "zero_copy", False) for ranks in (2, 4)]
        for n in (1 << 18, 1 << 26)
    )

    assert ["one_shot", "two_shot"] == [p.split("/")[1].split()[0] for p in small]
    assert all("push bulk zero_copy" in one for one in large)


def test_all_to_all_in_place_never_reads_what_a_peer_has_overwritten():
    """The fastest way is not safe there; the next in the table is."""
    apart = choice("all_to_all", 1 << 26, 4, "zero_copy", False)
    in_place = choice("all_to_all", 1 << 26, 4, "zero_copy", True)

    assert "zero_copy" in apart
    assert "zero_copy" not in in_place
