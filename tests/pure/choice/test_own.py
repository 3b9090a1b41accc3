"""Profiles of one's own: each counts on the machine it was measured on."""

import logging
import re
import threading
import time

import pytest

from stretto import topology
from stretto.bench.tune import merged
from stretto.cli import main
from stretto.errors import CallError
from stretto.runtime.calls import tuning
from stretto.runtime.choice import Profile, own
from stretto.runtime.choice.measured import Measured, agree

RULE = """
executor = "{executor}"
{machine}
[[rule]]
collective = "all_reduce"
memory = "staged"
ranks = [2, 4]
sizes = [["4K", "{pin}"]]
"""


def written(folder, name, pin, executor="cpu", machine=""):
    """Write a profile."""
    said = f'machine = "{machine}"' if machine else ""
    text = RULE.format(executor=executor, machine=said, pin=pin)
    (folder / name).write_text(text)
    return text


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Return the folder of one's own profiles, and have this be a known machine."""
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))
    here = {"cpu": "Fast 9000, 2 cores", "cuda": "NVIDIA B7"}
    monkeypatch.setattr(topology, "here", lambda device: here.get(device, ""))
    return tmp_path


def test_a_profile_of_another_machine_does_not_count(folder):
    """A home that many hosts mount has those of all; who says nothing counts if alone.

    Whatever the files are called, and in whatever order they come.
    """
    assert own.texts() == {}
    written(folder, "z.toml", "all_reduce/ring", machine="Slow 1, 64 cores")
    assert own.texts() == {}
    everywhere = written(folder, "cpu.toml", "all_reduce/swing")
    assert own.texts() == {"cpu": everywhere}
    for name in ("a.toml", "x.toml"):
        here = written(
            folder, name, "all_reduce/two_shot", machine="Fast 9000, 2 cores"
        )
        assert own.texts() == {"cpu": here}
        (folder / name).unlink()
    gpu = written(folder, "b.toml", "all_reduce/ring", "cuda", "NVIDIA B7")
    assert own.texts() == {"cpu": everywhere, "cuda": gpu}


def test_where_a_profile_is_written_says_of_what_machine_it_is(folder, monkeypatch):
    """Whoever cannot tell the machine writes one that counts everywhere."""
    assert own.path_of("cpu") == folder / "cpu.fast-9000-2-cores.toml"
    assert own.path_of("cuda") == folder / "cuda.nvidia-b7.toml"
    rule = {
        "collective": "all_reduce", "memory": "staged", "ranks": [2, 2],
        "sizes": [["4K", "all_reduce/ring"]],
    }  # fmt: skip
    path = own.path_of("cpu")
    path.write_text(merged(path, "cpu", [rule], "about"))
    assert Profile.parse(path.read_text(), "it").machine == "Fast 9000, 2 cores"
    monkeypatch.setattr(topology, "here", lambda device: "")
    assert own.texts() == {}
    assert own.path_of("cpu") == folder / "cpu.toml"
    assert (
        Profile.parse(merged(own.path_of("cpu"), "cpu", [rule], ""), "").machine == ""
    )


def test_rows_about_a_part_of_calls_stay_so_when_others_are_tuned(folder):
    """What is for one-way messages alone, or beside compute, comes first."""
    path = folder / "cpu.toml"
    path.write_text(
        RULE.format(executor="cpu", machine="", pin="all_reduce/swing")
        + "beside = true\n"
    )
    rule = {
        "collective": "all_reduce", "memory": "staged", "ranks": [2, 4],
        "sizes": [["4K", "all_reduce/ring"]],
    }  # fmt: skip
    found = Profile.parse(merged(path, "cpu", [rule], ""), "it").rules
    assert [(r.beside, r.sizes[0][1]) for r in found] == [
        (True, "all_reduce/swing"),
        (False, "all_reduce/ring"),
    ]


def test_this_machine_has_a_name():
    """With all cores, though a launcher may have bound this process to some."""
    assert re.fullmatch(r".+, \d+ cores?", topology.here("cpu"))
    assert topology.here("tpu") == ""


def test_what_is_shipped_says_where_it_was_measured(monkeypatch):
    """Once a process, and only where that is elsewhere, and nobody has tuned."""
    monkeypatch.setattr(tuning, "_said", set())
    shipped = Profile.shipped("cuda")
    assert shipped.machine == "NVIDIA H200"
    for here, profile in (("NVIDIA H200", None), ("", None), ("NVIDIA B7", shipped)):
        monkeypatch.setattr(topology, "here", lambda device, here=here: here)
        assert tuning.say_where_measured("cuda", profile, shipped) == ""
    monkeypatch.setattr(topology, "here", lambda device: "NVIDIA B7")
    assert tuning.say_where_measured("cpu", None, Profile.shipped("cpu")) == ""
    said = tuning.say_where_measured("cuda", None, shipped)
    assert "measured on NVIDIA H200, and this is NVIDIA B7: `stretto tune" in said
    assert tuning.say_where_measured("cuda", None, shipped) == ""


@pytest.mark.parametrize("said", ["1", "yes", "Quick"])
def test_another_word_is_refused_by_all(said, monkeypatch):
    """In one sentence: rank 0's word counts, for all."""
    monkeypatch.setenv("STRETTO_TUNE", said)

    class Group:
        rank = 0

        def exchange(self, payload):
            return [(payload, ())] * 2

    with pytest.raises(CallError, match=f"STRETTO_TUNE of rank 0='{said}'; want quick"):
        agree(Group())
    monkeypatch.setenv("STRETTO_TUNE", "quick")
    told = agree(Group())
    assert told.tune
    assert Measured.of(told.said()) == told


def test_a_tuner_that_fails_stops_no_job(monkeypatch, caplog):
    """It says why; what ends badly, or is killed for its time, has tuned nothing."""
    monkeypatch.setattr(tuning, "_WORDS", ("tune", "--nonsense"))
    failed = tuning._Quick("cpu", 2)
    while failed.goes_on():
        pass
    with caplog.at_level(logging.WARNING, logger="stretto"):
        failed.say()
    assert "--nonsense" in caplog.text
    monkeypatch.setattr(tuning, "_WORDS", ("tune", "--quick"))
    monkeypatch.setattr(tuning, "_LIMIT_S", 0.0)
    slow = tuning._Quick("cpu", 2)
    while slow.goes_on():
        pass
    with caplog.at_level(logging.WARNING, logger="stretto"):
        slow.say()
    assert "it was killed, after 0 s at most" in caplog.text


def test_one_measures_at_a_time_and_the_next_finds_it_done(folder):
    """Groups of a job would else disturb one another; nobody waits for ever."""
    order = []

    def second():
        with own.one_tuner():
            order.append(own.knows(own.texts().get("cpu"), 3))

    with own.one_tuner():
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.3)
        assert order == []
        written(folder, "cpu.toml", "all_reduce/ring")
    waiting.join(20)
    assert order == [True]
    assert not own.knows(own.texts()["cpu"], 5)
    assert not own.knows(None, 2)
    with own.one_tuner(), own.one_tuner(wait_s=0.2):
        order.append("both")
    assert order[-1] == "both"


def test_what_is_known_is_not_tuned_again(folder, capsys):
    """`--if-unknown` says so, and is done."""
    written(folder, "cpu.toml", "all_reduce/ring")
    assert main(["tune", "--if-unknown", "--ranks", "3"]) == 0
    assert "has rows for 3 ranks" in capsys.readouterr().out
