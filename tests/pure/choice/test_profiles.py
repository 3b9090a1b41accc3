"""Profiles: what is chosen by size, what is passed over, what is refused."""

from dataclasses import replace

import pytest

from stretto import topology
from stretto.errors import TopologyError
from stretto.executors import names
from stretto.runtime.choice import Profile, Question, Selector, own
from stretto.runtime.choice.measured import Measured, agree

PROFILE = """
executor = "cpu"
[[rule]]
collective = "all_reduce"
memory = "staged"
ranks = [2, 4]
sizes = [["4K", "all_reduce/swing"], ["1M", "all_reduce/ring pull bulk"]]
"""


def question(nbytes, num_ranks=4):
    return Question(
        executor="cpu", collective="all_reduce", num_ranks=num_ranks, nbytes=nbytes
    )


def test_a_profile_is_obeyed_by_size_and_passed_over_where_it_cannot_be():
    """Swing does not serve three ranks: the next row that works is taken."""
    selector = Selector("cpu", Profile.parse(PROFILE, "here"))

    assert "all_reduce/swing" in str(selector.choose(question(1024)))
    assert "all_reduce/ring pull" in str(selector.choose(question(8192)))
    assert "all_reduce/ring pull" in str(selector.choose(question(1024, 3)))


def test_without_a_profile_the_simulator_chooses():
    """Few hops when small, little data when large; always the same."""
    selector = Selector("cuda", None)
    selector._profiles = []
    small, large = (selector.choose(question(n)) for n in (1 << 10, 1 << 26))

    assert str(small) != str(large)
    assert str(small) == str(selector.choose(question(1 << 10)))


def test_a_malformed_profile_is_one_clear_line():
    """It names the file and what was wanted."""
    with pytest.raises(TopologyError, match=r"profile here: KeyError.*want executor"):
        Profile.parse("[[rule]]\ncollective = 'all_reduce'", "here")


def test_a_users_profiles_are_read_where_they_lie(monkeypatch, tmp_path):
    """By executor; what cannot be read is named, and passed over."""
    (tmp_path / "cpu.toml").write_text(PROFILE)
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))

    assert {"cpu": PROFILE} == own.texts()
    (tmp_path / "gpu.toml").write_bytes(b"\xff")
    with pytest.warns(RuntimeWarning, match=r"gpu\.toml.*passed over"):
        assert {"cpu": PROFILE} == own.texts()


@pytest.mark.parametrize(
    "pin",
    ["all_reduce/of_my_own push bulk", "all_reduce/two_shot push lines staged"],
)
def test_a_row_that_names_what_is_not_known_is_passed_over(pin):
    """It was registered where the profile was measured; or a version has dropped it."""
    profile = PROFILE.replace("all_reduce/swing", pin)
    selector = Selector("cpu", Profile.parse(profile, "here"))

    assert "all_reduce/ring pull" in str(selector.choose(question(1024)))


def test_what_one_rank_lacks_no_rank_chooses(monkeypatch, tmp_path):
    """Rank 0 reads a profile of a kernel that rank 1 alone has not imported."""
    (tmp_path / "cpu.toml").write_text(PROFILE)
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))
    lacking = {0: [], 1: ["all_reduce/swing"]}
    heard = []

    class Group:
        rank, num_ranks = 0, 2

        def exchange(self, payload):
            heard.append(payload)
            if "profiles" in payload:
                return [(payload, ()), ({"profiles": {}}, ())]
            return [({"lacking": names}, ()) for names in lacking.values()]

    def chosen():
        return str(Selector("cpu", agree(Group()).profile("cpu")).choose(question(99)))

    assert "all_reduce/ring pull" in chosen()
    lacking[1] = []
    assert "all_reduce/swing" in chosen()
    assert {"lacking": []} == heard[-1]


def test_without_a_profile_nobody_is_asked(monkeypatch, tmp_path):
    """One exchange, as most communicators have it."""
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))
    asked = []

    class Group:
        rank, num_ranks = 1, 2

        def exchange(self, payload):
            asked.append(payload)
            return [(payload, ())] * 2

    here = topology.here("cpu")
    assert Measured(here=here) == agree(Group())
    assert [{"profiles": {}, "bits": "any", "here": here, "tune": ""}] == asked


def test_a_row_that_the_machine_refuses_is_passed_over():
    """The next row for the size is taken."""

    class Session:
        def refuses(self, plan):
            return "not here" if plan.value.schedule.protocol == "packets" else ""

    packets = PROFILE.replace("all_reduce/swing", "all_reduce/ring push packets")
    sessions = {}
    selector = Selector("cpu", Profile.parse(packets, "here"), sessions)
    assert "all_reduce/ring push packets" in str(selector.choose(question(1024)))
    sessions["cpu"] = Session()
    assert "all_reduce/ring pull" in str(selector.choose(question(1024)))


@pytest.mark.parametrize("executor", names())
def test_every_pin_of_a_shipped_profile_exists(executor):
    """A profile that names what is not in the catalogue would fail at its first use."""
    for rule in Profile.shipped(executor).rules:
        for n in {min(max(rule.fewest, 2), rule.most), min(rule.most, 8)}:
            for nbytes, _ in rule.sizes:
                params = (
                    (("root", 0),)
                    if rule.collective in ("broadcast", "gather", "reduce", "scatter")
                    else ()
                )
                asked = Question(
                    executor=executor,
                    collective=rule.collective,
                    num_ranks=n,
                    nbytes=nbytes,
                    memory="staged" if rule.memory == "across" else rule.memory,
                    across=rule.memory == "across",
                    params=params,
                )
                assert Profile.shipped(executor).choose(asked) is not None


ACROSS = """
executor = "cpu"
[[rule]]
collective = "permute"
memory = "across"
ranks = [2, 2]
one_way = true
sizes = [["1T", "permute/halves pull bulk across given:push"]]
"""


@pytest.mark.parametrize(
    ("pairs", "across", "expected"),
    [
        (((0, 1),), True, True),
        (((0, 1),), False, False),
        (((0, 1), (1, 0)), True, False),
    ],
)
def test_a_row_across_is_for_who_may_and_one_way(pairs, across, expected):
    """Where the kernel copies, and nobody both sends and receives."""
    asked = Question(
        executor="cpu", collective="permute", num_ranks=2, nbytes=1 << 20,
        params=(("pairs", pairs),), across=across,
    )  # fmt: skip
    found = Profile.parse(ACROSS, "here").choose(asked)

    assert expected == (found is not None)


def test_a_pin_across_in_a_staged_row_is_passed_over_where_nothing_crosses():
    """A table that was tuned elsewhere stops no call."""
    text = ACROSS.replace('"across"', '"staged"').replace("one_way = true\n", "")
    asked = Question(
        executor="cpu", collective="permute", num_ranks=2, nbytes=1 << 20,
        params=(("pairs", ((0, 1),)),),
    )  # fmt: skip

    assert Profile.parse(text, "here").choose(asked) is None
    assert Profile.parse(text, "here").choose(replace(asked, across=True)) is not None


def test_what_is_shipped_for_a_machine_comes_first_there(monkeypatch):
    """Else it comes last, behind what counts everywhere, and is never asked."""
    xeon = "Intel(R) Xeon(R) Processor, 2 cores"
    large = replace(question(1 << 20, 2), collective="scatter", across=True)
    small = replace(large, nbytes=100 << 10)

    def chosen(asked, here):
        said = Measured(here=here)
        return str(Selector("cpu", shipped=said.shipped("cpu")).choose(asked))

    for here in ("", "Another, 2 cores"):
        assert "staged" in chosen(small, here)
        assert "across" in chosen(large, here)
    assert "across" in chosen(small, xeon)
    assert "staged" in chosen(replace(small, across=False), xeon)
    assert Profile.shipped("cpu", xeon).about.startswith("Intel Xeon")
    assert "Intel" not in Profile.shipped("cpu").about
