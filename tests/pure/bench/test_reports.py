"""What a document becomes: tables, formats of others, verdicts."""

import json
from dataclasses import replace

import numpy as np
import pytest

from stretto import bench
from stretto.bench.measuring.loop import Timings
from stretto.bench.rows import row_of
from stretto.bench.workload.cases import case_of
from stretto.cli import main
from stretto.errors import CallError, ParseError, UnknownNameError

FLOOR = {"copy_gbps": 10.0, "barrier_us": 1.0}


def rows(scale=1.0, wrong=""):
    """Two contenders in two sizes, and one that refuses."""
    task = bench.BenchTask(tests=("all_reduce",), sizes=(1024, 1 << 20), num_ranks=2)
    rng = np.random.default_rng(7)
    found = []
    for nbytes in task.sizes:
        case = case_of("all_reduce", nbytes, 2)
        base = 2.0 + nbytes / 1e4
        ours = Timings(us=base * scale * rng.uniform(1, 1.05, (2, 30)), turns=9)
        gloo = Timings(
            us=5 * base * rng.uniform(1, 1.05, (2, 30)), turns=3, wrong=wrong
        )
        none = Timings(refused=True, note="CallError: not here")
        for name, one in (("stretto", ours), ("gloo", gloo), ("mpi", none)):
            row = row_of(case, task, name, one, "all_reduce/x", ours, FLOOR, None)
            found.append(row.as_json())
    return task, found


def document(**options):
    task, found = rows(**options)
    data = {"limits": FLOOR, "missing": {"nccl": "no GPU"}, "rows": found}
    return bench.document_of(task, data, ["stretto", "bench", "all_reduce"])


def test_a_document_says_all_that_is_needed_to_do_it_again(monkeypatch):
    """Command, commit, machine, versions; the machine's name is nobody's business."""
    monkeypatch.setenv("STRETTO_COMMIT", "0123abc")
    made = document()

    keys = {"command", "commit", "machine", "versions", "missing", "limits", "rows"}
    assert keys <= made.keys()
    assert "0123abc" == made["commit"]
    assert {"system", "processor", "cores", "load"} <= made["machine"].keys()
    assert json.loads(bench.as_text(made)) == json.loads(bench.as_text(made))


def test_a_document_is_read_back(tmp_path):
    """What was written compares as the same."""
    path = tmp_path / "a.json"
    path.write_text(bench.as_text(document()))

    verdicts = bench.compare(bench.read_document(path), document())

    assert {"same"} == {v.said for v in verdicts}


def test_what_is_no_document_is_refused(tmp_path):
    """A file of something else is named."""
    path = tmp_path / "a.json"
    path.write_text("[1]")

    with pytest.raises(ParseError, match="want what stretto bench --json wrote"):
        bench.read_document(path)


def test_slower_than_noise_is_a_regression_and_faster_is_none():
    """Only our own rows count; peers tell how the machine was."""
    slower = bench.compare(document(), document(scale=1.3))
    faster = bench.compare(document(), document(scale=0.7))

    assert ["slower"] * 2 == [v.said for v in slower if v.contender == "stretto"]
    assert 2 == sum(v.is_regression for v in slower)
    assert 0 == sum(v.is_regression for v in faster)
    assert "2 of 4 rows are worse" in bench.show_verdicts(slower)


def test_a_row_that_is_gone_is_a_regression():
    """Not measuring is no way to become faster."""
    after = document()
    after["rows"] = [r for r in after["rows"] if r["nbytes"] > 1024]

    said = {v.said for v in bench.compare(document(), after) if v.is_regression}

    assert {"gone"} == said


def test_wrong_results_and_missing_peers_are_shown():
    """WRONG in every form; a peer that is not there with its reason."""
    made = document(wrong="rank 1: element 3 is 7, want 9")

    for shown in (bench.show(made, rich=False), bench.markdown(made)):
        assert "WRONG" in shown
        assert "nccl is missing: no GPU" in shown
        assert "not here" in shown
    assert "WRONG(" in bench.osu_format(made)
    assert "FAILED" in bench.nccl_format(made)
    assert "0.00" not in bench.nccl_format(made)  # no bandwidth is not none of it


@pytest.mark.parametrize(("wrong", "status"), [("", 0), ("element 3 is 7", 1)])
def test_a_wrong_result_is_the_exit_status(monkeypatch, capsys, wrong, status):
    """What runs it unattended need not read the table."""
    _, found = rows(wrong=wrong)
    made = {"limits": FLOOR, "missing": {}, "rows": found}
    monkeypatch.setattr(bench, "run_task", lambda *_, **__: made)

    assert status == main(["bench", "all_reduce", "--plain"])
    assert ("WRONG" in capsys.readouterr().out) == bool(wrong)


def test_the_bus_of_a_pattern_is_what_the_busiest_has_for_others():
    """Nothing of incast stays at home; with even routes a quarter does."""
    task = bench.BenchTask(tests=("incast",), sizes=(1 << 20,), num_ranks=4)
    us = Timings(us=np.full((4, 9), 100.0), turns=1)
    for test, share in (("incast", 1.0), ("pairwise", 1.0), ("moe_combine", 0.75)):
        case = case_of(test, 1 << 20, 4, skew=0.0)
        row = row_of(case, task, "stretto", us, "", us, FLOOR, None)

        assert row.busbw_gbps == pytest.approx(row.algbw_gbps * share, rel=0.03)


def test_a_wrong_row_has_no_part_in_the_means():
    """Being wrong quickly is not being quick."""
    assert 5 == pytest.approx(document()["geomean"]["gloo"]["all"], rel=0.1)
    assert {} == document(wrong="off")["geomean"]["gloo"]


def test_rich_and_plain_tables_hold_the_same_figures():
    """Colours are all that rich adds."""
    pytest.importorskip("rich", reason="the table without rich is tested above")
    made = document()

    for width in (60, 80, 120, 300):
        plain, rich = (bench.show(made, rich=r, width=width) for r in (False, True))

        assert plain.split() == rich.split()


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
@pytest.mark.parametrize("rich", [False, True])
def test_a_table_fits_the_terminal(width, rich):
    """What has no room is named; size, time and ratio are always there."""
    if rich:
        pytest.importorskip("rich", reason="the table without rich is tested as well")
    made = document()
    made["machine"] |= {"load": 9.0, "cores": 2}
    shown = bench.show(made, rich=rich, width=width)
    whole = bench.show(made, rich=False, width=400)

    assert all(len(line) <= width for line in shown.splitlines())
    for name in ("size", "who", "p50 us", "vs stretto"):
        assert name in shown
    for name in ("p99 us", "bus GB/s", "of limit"):  # in the table, or named below it
        assert name in " ".join(shown.split())
        assert name in whole
    assert ("no room for" in shown) == (width < 140)


def test_load_is_said_before_any_figure():
    """On the terminal and on the page: who boasts first is not read to the end."""
    made = document()
    made["machine"] |= {"load": 9.0, "cores": 2}
    for text in (bench.show(made, rich=False, width=400), bench.markdown(made)):
        assert text.index("others were at work") < text.index("1K")
        assert 1 == text.count("others were at work")
    made["machine"] |= {"load": 0.5}
    assert "others were at work" not in bench.show(made, rich=False)


def test_the_share_of_the_limit_counts_hearing_and_moving():
    """1 MiB at 10 GB/s takes 105 us, and a word from everybody 1 us."""
    case = case_of("all_gather", 1 << 20, 2)
    task = bench.BenchTask(tests=("all_gather",), sizes=(1 << 20,), num_ranks=2)
    found = Timings(us=np.full((2, 5), 100.0), turns=1)
    floor = {"copy_gbps": 10.0, "barrier_us": 1.0, "flag_us": 1.0}

    row = row_of(case, task, "stretto", found, "all_gather/ring", found, floor, None)

    moved_us = (1 << 20) / 2 / 10e3
    assert (1.0 + moved_us) / 100 == pytest.approx(row.limit_share)
    assert row.sms is None


@pytest.mark.parametrize(
    ("pin", "sms"),
    [("x/y push packets blocks=64", 64), ("x/y push bulk", 1), ("x/y engine", 0)],
)
def test_blocks_take_the_sms_of_a_gpu(pin, sms):
    """One each: all of them wait for each other."""
    case = case_of("all_reduce", 64, 2)
    task = bench.BenchTask(
        tests=("all_reduce",), sizes=(64,), num_ranks=2, device="cuda"
    )
    found = Timings(us=np.full((2, 5), 3.0), turns=1)

    row = row_of(case, task, "stretto", found, pin, found, FLOOR, None)

    assert sms == row.sms


def test_columns_that_nobody_has_are_left_out():
    """No SMs on a CPU, no messages but between pairs."""
    shown = bench.show(document(), rich=False)

    assert "of limit" in shown
    assert "SMs" not in shown
    assert "msg/s" not in shown


def test_osu_and_nccl_tests_are_printed_as_theirs(golden):
    """Their readers find their columns."""
    made = document()
    for row in made["rows"]:
        row |= {"p50_us": row["p50_us"] and 12.5, "algbw_gbps": 1.0, "busbw_gbps": 1.0}

    golden(bench.osu_format(made) + bench.nccl_format(made))


def test_a_csv_has_a_line_a_row():
    """And a header that names its columns."""
    lines = bench.as_csv(document()).splitlines()

    assert 7 == len(lines)
    assert "p99_us" in lines[0].split(",")


def test_a_figure_is_drawn(tmp_path):
    """In the form of its name; other names are refused before anything is measured."""
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib")
    bench.plot(document(), str(tmp_path / "a.svg"))

    assert "<svg" in (tmp_path / "a.svg").read_text()
    with pytest.raises(CallError, match="ends in"):
        bench.open_figure("a.txt")


def meant(names, device):
    return bench.expand(names, bench.Contender, lambda one: device in one.DEVICES)


def test_all_peers_of_a_device_are_meant_by_all():
    """And a wrong name is answered."""
    assert {"gloo", "mpi"} <= set(meant(["all"], "cpu"))
    assert {"nccl", "nccl-tuned", "nccl-symm", "torch-symm"} <= set(
        meant(["all"], "cuda")
    )
    with pytest.raises(UnknownNameError, match="known: gloo"):
        meant(["glo"], "cpu")


def test_a_task_survives_the_way_to_the_ranks():
    """What every rank is told is what was asked."""
    task = bench.BenchTask(
        tests=("matrix",), sizes=(8,), num_ranks=2, traffic=((0.0, 1.0), (1.0, 0.0))
    )

    assert task == bench.BenchTask.from_json(json.loads(json.dumps(task.as_json())))
    with pytest.raises(UnknownNameError, match="no mode named 'fast'"):
        replace(task, mode="fast")


def test_peers_that_disturb_others_have_a_run_of_their_own():
    """NCCL reads its settings once a process."""
    task = bench.BenchTask(
        tests=("all_reduce",), sizes=(8,), num_ranks=2, peers=("nccl", "nccl-tuned")
    )

    assert [("nccl",), ("nccl-tuned",)] == [t.peers for t in bench.runs_of(task)]
