"""Evicting and fetching ahead, found together or apart, on traces of real programs.

    python benchmarks/search_prefetch.py [--evals 200] [--requests 60000]

Valgrind's lackey says which addresses programs ask for; where it is not installed, that
is said. Apart: what is found for fetching alone, and for the score alone, put together.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from stretto.search import evolve, problem

SQLITE = """import sqlite3
d = sqlite3.connect(":memory:")
d.execute("create table t(a, b)")
d.executemany("insert into t values (?, ?)", ((i * 7 % 997, i) for i in range(3000)))
d.execute("select a, sum(b) from t group by a order by a").fetchall()
"""
PROGRAMS = {
    "sort": (["sort", "-n", "{words}"], 200_000),
    "gzip": (["gzip", "-c", "{words}"], 300_000),
    "awk": (["awk", "{{ n[$1]++ }} END {{ print length(n) }}", "{words}"], 200_000),
    "sha256sum": (["sha256sum", "{words}"], 100_000),
    "python": ([sys.executable, "-S", "-c", "sorted(range(9999), key=str)"], 4_000_000),
    "sqlite": ([sys.executable, "-S", "-c", SQLITE], 9_000_000),
}
"""Commands, and how many lines of the trace are passed over: the start of a process."""


def traced(command: list[str], skip: int, requests: int, path: Path) -> None:
    """Write what lackey says of a command, from some way into it on."""
    words = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--log-fd=1", *command]
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        errors="replace",
    )  # fmt: skip
    assert child.stdout is not None
    with path.open("w") as file:
        file.writelines(islice(child.stdout, skip, skip + 3 * requests))
    child.kill()
    child.communicate()


def main() -> None:
    """Print a line for each program, and how often together was no worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evals", type=int, default=200)
    parser.add_argument("--requests", type=int, default=60_000)
    given = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not here: no traces")
    gains = []
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words"
        words.write_text("".join(f"{i * 7919 % 5003} {i}\n" for i in range(4000)))
        for name, (command, skip) in PROGRAMS.items():
            path = Path(folder) / f"{name}.lackey"
            traced([w.format(words=words) for w in command], skip, given.requests, path)
            found = {}
            for part in ("both", "fetch", "score"):
                made = problem("prefetch", trace=str(path), size=0.05, part=part)
                found[part] = evolve(made, evals=given.evals, seed=1)
            made = problem("prefetch", trace=str(path), size=0.05)
            fetch, score = (found[p].text.splitlines() for p in ("fetch", "score"))
            apart = made.held_out(made.parse("\n".join([*fetch[:2], score[2]])))
            rows = {"none": found["both"].first, "apart": apart,
                    "together": found["both"].held_out}  # fmt: skip
            gains.append(rows["together"]["hit_rate"] - apart["hit_rate"])
            said = "; ".join(
                f"{how}: hits {row['hit_rate']:.4f}, right {row['accuracy']:.3f}"
                for how, row in rows.items()
            )
            print(f"{name:10} {said}", flush=True)
    good = sum(g >= -1e-4 for g in gains)
    mean = statistics.mean(gains)
    print(f"together no worse in {good} of {len(gains)}; hits {mean:+.4f}")


if __name__ == "__main__":
    main()
