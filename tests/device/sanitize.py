"""compute-sanitizer over kernels whose ranks are block groups of one launch.

    python tests/device/sanitize.py --out DIR [--seconds 60]

A few plans of each protocol, each tool once: memory errors, races in shared memory,
wrong barriers. Spinning ranks are in one launch, so tools that serialise launches do
not keep them from meeting.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOOLS = ("memcheck", "racecheck", "synccheck")
ALGORITHMS = (
    "all_reduce/one_shot",
    "all_reduce/two_shot",
    "all_reduce/ring",
    "all_to_all/one_shot",
)
PROTOCOLS = ("packets blocks=2", "push bulk staged", "pull bulk zero_copy")
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")


def find() -> str | None:
    """Return where the tool is."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(PLACES)
    )


def run(tool: str, program: str, out: Path, seconds: float) -> dict[str, Any]:
    """Run every case under one tool; return what it said."""
    words = "|".join(f"{a} {p}" for a in ALGORITHMS for p in PROTOCOLS)
    folder = out / f"sanitize_{tool}"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("tool*.log"):
        old.unlink()
    log = folder / "toolNTH.log"  # a worker that dies is followed by another
    prefix = f"{program} --tool {tool} --error-exitcode 7 --log-file {log}"
    command = [sys.executable, str(HERE / "virtual.py"), "--out", str(folder)]
    command += ["--ranks", "3", "--only", words, "--counts", "7,4099"]
    command += ["--deadline", "20", "--seconds", str(seconds), "--prefix", prefix]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds + 15
        )
        printed = done.stdout
    except subprocess.TimeoutExpired:
        printed = "it took too long"
    said = "".join(one.read_text() for one in sorted(folder.glob("tool*.log")))
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", said)
    report = folder / "virtual.json"
    found = json.loads(report.read_text()) if report.exists() else {}
    return {
        "tool": tool,
        "seconds": round(time.monotonic() - began, 1),
        "summary": summary,
        "clean": bool(summary)
        and all(re.search(r"\b0 (errors|hazards)", s) for s in summary),
        "right": found.get("right", 0),
        "wrong": [str(w)[:500] for w in found.get("wrong", [])],
        "not_run": found.get("not_run"),
        "not_compiled": len(found.get("left_out", ())),
        "log": said[:4000],
        "printed": printed[:2000],
    }


def main() -> int:
    """Run every tool, a failure of one not keeping the next from running."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tools", default=",".join(TOOLS))
    args = parser.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    program = find()
    if program is None:
        print("compute-sanitizer is not installed")
        return 2
    rows = []
    stop_at = time.monotonic() + args.seconds
    tools = args.tools.split(",")
    for index, tool in enumerate(tools):
        left = (stop_at - time.monotonic()) / (len(tools) - index)
        row = run(tool, program, Path(args.out), max(10.0, left))
        rows.append(row)
        (Path(args.out) / "sanitize.json").write_text(json.dumps(rows, indent=1))
        print(tool, row["seconds"], "s", row["summary"], row["right"], "right")
        for line in row["wrong"][:5]:
            print("  ", line[:300])
    return 0 if all(r["clean"] and r["right"] and not r["wrong"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
