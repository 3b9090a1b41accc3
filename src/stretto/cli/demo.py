"""Take the tour in a minute: write, prove, simulate, run, compare."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from stretto import bench, topology
from stretto.cli import run as run_command
from stretto.cli.fastest import fastest
from stretto.cli.output import Progress, add_json, print_json, table
from stretto.cli.targets import find
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import PromiseError
from stretto.program.lang import Algorithm
from stretto.runtime.choice import parse_sizes, spell_size
from stretto.trace import MONOTONIC

_FILE = '''\
"""Two-shot all-reduce, in eight lines."""

from stretto import algorithm, reduce


@algorithm("all_reduce/mine")
def mine(ranks):
    """Rank r adds up chunk r, then hands it round."""
    for r in ranks:
        r.output[r] = reduce(q.input[r] for q in ranks)
    for r in ranks:
        for q in r.others:
            q.output[r] = r.output[r]
'''
_SLIP = ("reduce(q.input[r] for q in ranks)", "reduce(q.input[r] for q in r.others)")
_RANKS = 4
_PROVED = (2, 3, 4, 8)
_SIZES = "1K,64K,1M,16M"
_BUDGET_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was done, step by step."""
    start_us = MONOTONIC.now_us()
    say = (lambda _: None) if args.json else print
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.py"
        path.write_text(_FILE, encoding="utf-8")
        found = find(f"{path}:mine")
        assert isinstance(found, Algorithm), "the file above makes one"
        say("1. Write an algorithm: plain assignments between the ranks' arrays.\n")
        say("     " + _FILE.strip().replace("\n", "\n     ") + "\n")
        say("2. Prove it, for every rank, before anything runs.\n")
        with Progress(len(_PROVED)) as progress:
            lines = _proofs(found, path, progress)
        for line in lines:
            say(f"     {line}")
        say("\n3. Simulate it on 8 GPUs (H200, NVLink) that are not here.\n")
        with Progress(len(parse_sizes(_SIZES))) as progress:
            simulated = _simulated(found, progress)
        say(_indent(table(simulated)))
        say(f"\n4. Run it on {_RANKS} processes of this machine, checked.\n")
        with Progress(2) as progress:
            progress.step(f"running {_SIZES} on {_RANKS} ranks")
            rows = _measured(f"{path}:mine")
    with Progress(2) as progress:
        progress.step("checked; running Gloo beside it")
        _compare(rows, say)
    say(_indent(table([{k: v for k, v in r.items() if k != "nbytes"} for r in rows])))
    seconds = (MONOTONIC.now_us() - start_us) / 1e6
    say(f"\nDone in {seconds:.1f} s. Next: stretto list, stretto show all_reduce/ring")
    if args.json:
        print_json({"command": args.command, "rows": rows})
    return 0 if all(row["ok"] for row in rows) else 1


def _proofs(algorithm: Algorithm, path: Path, progress: Progress) -> list[str]:
    """Return what is proved, and what is said of a slip."""
    lines = []
    for n in _PROVED:
        progress.step(f"proving it for {n} ranks")
        begin_us = MONOTONIC.now_us()
        program = verify(algorithm.build(n))
        verify_plan(lower(program, Schedule()), program)
        took_ms = (MONOTONIC.now_us() - begin_us) / 1e3
        lines.append(
            f"{n} ranks: the program and its plan keep the promise ({took_ms:.1f} ms)"
        )
    slip = path.with_name("slip.py")
    slip.write_text(_FILE.replace(*_SLIP), encoding="utf-8")
    wrong = find(f"{slip}:mine")
    assert isinstance(wrong, Algorithm), "the file above makes one"
    try:
        verify(wrong.build(3))
    except PromiseError as e:
        told = str(e).replace(f"{slip.parent}/", "")
        lines += ["", f"With `{_SLIP[1]}` instead, verify says:", f"  {told}"]
    return lines


def _simulated(algorithm: Algorithm, progress: Progress) -> list[dict[str, Any]]:
    machine = topology.load("h200x8")
    program = verify(algorithm.build(8))
    rows, sizes = [], parse_sizes(_SIZES)
    for nbytes in sizes:
        progress.step(f"simulating {spell_size(nbytes)} on 8 GPUs")
        plan, found = fastest(program, machine, nbytes, itemsize=4)
        rows.append(
            {
                "size": spell_size(nbytes),
                "time_us": found.time_us,
                "busbw_gbps": found.busbw_gbps,
                "schedule": str(plan.value.schedule),
            }
        )
    return rows


def _measured(target: str) -> list[dict[str, Any]]:
    """Return what `stretto run` finds, for the program above."""
    parser = argparse.ArgumentParser()
    run_command.add_arguments(parser)
    words = [target, "--ranks", str(_RANKS), "--sizes", _SIZES, "--json"]
    args = parser.parse_args(words)
    return [
        {k: row[k] for k in ("size", "nbytes", "ok", "max_error", "time_us")}
        for row in run_command.measure(args)
    ]


def _compare(rows: list[dict[str, Any]], say: Any) -> None:
    """Add Gloo's times, measured just now, to the rows."""
    task = bench.BenchTask(
        tests=("all_reduce",),
        sizes=tuple(row["nbytes"] for row in rows),
        num_ranks=_RANKS,
        peers=("gloo",),
        budget_s=_BUDGET_S,
    )
    found = bench.run_task(task, lambda said: None, how="spawn")
    if why := found["missing"].get("gloo"):
        say(f"     (no Gloo to compare with: {why})")
        return
    theirs = {
        r["nbytes"]: r["p50_us"] for r in found["rows"] if r["contender"] == "gloo"
    }
    for row in rows:
        if gloo_us := theirs.get(row["nbytes"]):
            row["gloo_us"] = gloo_us
            row["times_faster"] = gloo_us / row["time_us"]


def _indent(text: str) -> str:
    return "     " + text.replace("\n", "\n     ")
