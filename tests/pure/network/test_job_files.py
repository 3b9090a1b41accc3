"""Files of jobs read back as written, logs are read, and hostile ones refused."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import CallError, StrettoError
from stretto.network import jobs

TOML = """
[[jobs]]
name = "a"
profile = "vgg16"
workers = 3
arrives_s = 2
jitter = 0.02

[[jobs]]
name = "b"
ranks = [0, 4]
iterations = 7
[[jobs.steps]]
compute_ms = 100
up_ms = 100
gbits_per_s = 45
"""
LOG = """JobID,submit_time,GPU_num,duration,state
1,2020-04-01 00:00:10,4,300,COMPLETED
2,2020-04-01 00:00:00,0,10,FAILED
3,2020-04-01 00:02:10,2,100,COMPLETED
"""


def test_a_trace_reads_back(tmp_path):
    """Job for job, from any seed."""
    for seed, kind in ((1, "poisson"), (2, "burst")):
        made = jobs.generate(servers=16, hours=0.3, seed=seed, kind=kind)
        jobs.write(made, tmp_path / "t.toml")
        read = jobs.read(tmp_path / "t.toml")

        assert [(j.name, j.steps, j.workers, j.iterations, j.jitter) for j in made] == [
            (j.name, j.steps, j.workers, j.iterations, j.jitter) for j in read
        ]
        assert made == jobs.generate(servers=16, hours=0.3, seed=seed, kind=kind)


def test_a_load_keeps_so_many_workers_busy():
    """What jobs take alone, of all the time there is, is about the load."""
    made = jobs.generate(servers=64, load=0.7, hours=20, seed=3)
    busy = sum(job.workers * job.alone_ms for job in made)

    assert 0.7 == pytest.approx(busy / (64 * 20 * 3.6e6), rel=0.15)


def test_a_log_of_a_cluster_is_read(tmp_path):
    """By the usual names of columns; times count from the first job on."""
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    first, second = jobs.read(path)

    assert ("1", 4, 0.0) == (first.name, first.workers, first.arrives_ms)
    assert ("3", 2, 120_000.0) == (second.name, second.workers, second.arrives_ms)
    assert 100_000 == pytest.approx(second.alone_ms, rel=0.01)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.toml", "", "t.toml: has no jobs"),
        ("t.toml", "[[jobs", "t.toml: not TOML"),
        ("t.toml", "jobs = 3", "jobs: got 3; want a list of tables"),
        ("t.toml", '[[jobs]]\nprofile = "vgg61"', r"jobs\[0\].profile: got 'vgg61'"),
        ("t.toml", "[[jobs]]\nperiod = 3", r"jobs\[0\].steps: got nothing; want at"),
        ("t.toml", TOML + "\n[[jobs.steps]]\ncompute_ms = -3", "compute_ms: got -3"),
        ("t.toml", TOML.replace("= 7", "= 0"), r"jobs\[1\].iterations: got 0"),
        ("t.toml", TOML.replace('"b"', '"a"'), "two jobs named 'a'"),
        ("t.toml", TOML.replace("up_ms = 100", "up_ms = 0\nmbytes = 3"), "not both"),
        ("t.csv", "", "columns none; want one of job_id"),
        ("t.csv", LOG.replace("duration", "length"), "want one of duration, run_time"),
        ("t.csv", LOG.replace("300", "long"), "t.csv:2, takes: got 'long'; want a num"),
        ("t.csv", LOG.replace("2020-04-01 00:00:10", "monday"), "want seconds, or a"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(tmp_path, name, text, said):
    """One sentence: file, field, value, and what is wanted."""
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(CallError, match=said):
        jobs.read(path)


def test_files_of_a_million_jobs_are_refused_at_once(tmp_path):
    """By their size, or by the first job too many."""
    log, big = tmp_path / "log.csv", tmp_path / "t.toml"
    rows = (f"{i},{i},1,10\n" for i in range(1_000_00))
    log.write_text("id,submit,gpus,duration\n" + "".join(rows))
    big.write_text("[[jobs]]\n" * 2_000_000)

    with pytest.raises(CallError, match="more than 10000 jobs"):
        jobs.read(log)
    with pytest.raises(CallError, match="has 17 MiB; want at most 16"):
        jobs.read(big)


@settings(max_examples=150)
@given(st.integers(0, 1 << 30), st.sampled_from([("t.toml", TOML), ("t.csv", LOG)]))
def test_a_spoiled_file_is_read_or_refused(tmp_path_factory, seed, kind):
    """Whatever is changed, doubled, cut or put in: a sentence, never a traceback."""
    name, text = kind
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 4)):
        at, to = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        new = draw.choice(
            ["", text[at:to] * 2, "-1", "1e999", "nan", "[[", '"', "\0", "9" * 30, ","]
        )
        text = text[:at] + new + text[min(to, at + draw.randint(0, 9)) :]
    path = tmp_path_factory.mktemp("spoiled") / name
    path.write_text(text, encoding="utf-8")
    found, refused = (), ""
    try:
        found = jobs.read(path)
    except StrettoError as e:
        refused = str(e)

    assert found or str(path) in refused
    assert "\n" not in refused
    assert all(job.period_ms > 0 for job in found)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"load": 0}, "load: got 0; want more than 0"),
        ({"hours": 1e9}, "hours: got 1e"),
        ({"servers": 1}, "servers: got 1; want at least 2"),
        ({"kind": "x"}, "kind 'x'; want poisson or burst"),
    ],
)
def test_traces_that_mean_nothing_are_refused(more, said):
    """In a sentence."""
    with pytest.raises(CallError, match=said):
        jobs.generate(**{"servers": 4, **more})
