"""`stretto cc`, and plans on packets by `stretto simulate --network packet`."""

import json

import pytest

from stretto import network

RING = ("simulate", "all_reduce/ring", "--machine", "leaf_spine2x2", "--size", "16K")


def test_every_control_is_listed_and_shown(stretto):
    """Each says what it is, and each figure of it has a source."""
    _, listed, _ = stretto("cc", "list")
    for name in network.names():
        status, shown, _ = stretto("cc", "show", name, "--json")
        told = json.loads(shown)

        assert 0 == status
        assert name in listed
        assert told["about"]
        assert all(figure["source"] for figure in told["parameters"])


def test_a_plan_runs_on_packets_under_every_control_asked_for(stretto, monkeypatch):
    """A row for each; flows are beside it, and links in JSON."""
    monkeypatch.setattr("stretto.fabric.jit.missing", lambda: "not here")
    network_words = ("--network", "packet", "--cc", "pfc,dctcp", "--json")
    status, out, _ = stretto(*RING, *network_words)
    rows = json.loads(out)["rows"]

    assert 0 == status
    assert ["pfc", "dctcp"] == [row["cc"] for row in rows]
    assert all(row["as_flows_us"] <= row["time_us"] for row in rows)
    assert all(row["links"] and not row["drops"] for row in rows)


@pytest.mark.parametrize("nbytes", ["0", "1", "64K"])
def test_one_rank_alone_sends_no_packets(stretto, tmp_path, nbytes):
    """A machine without a link has no queue, and a call takes what it takes there."""
    (tmp_path / "one.toml").write_text('about = "one"\nkind = "cpu"\nranks = 1\n')
    words = ("--machine", str(tmp_path / "one.toml"), "--size", nbytes, "--json")
    status, out, _ = stretto(
        "simulate", "all_gather/one_shot", *words, "--network", "packet"
    )

    assert 0 == status
    assert [[0, ""]] == [[r["max_queue"], r["at"]] for r in json.loads(out)["rows"]]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("cc", "show", "dcqn"), "no congestion control named 'dcqn'; did you mean"),
        ((*RING, "--cc", "pfc"), "want it with --network packet"),
        ((*RING, "--network", "packet", "--cc", "tcp"), "no congestion control named"),
        ((*RING, "--network", "packet", "--cc", "pfc+pfc"), "want NAME or mltcp"),
        ((*RING, "--network", "packet", "--schedule", "written"), "want a plan's"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(stretto, words, reason):
    """With what is wanted, and exit 2."""
    status, _, err = stretto(*words)

    assert 2 == status
    assert reason in err
    assert 1 == err.count("\n")
