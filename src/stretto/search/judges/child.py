"""A child that judges: `python -m stretto.search.judges.child MEGABYTES PARENT`.

It reads lines of JSON: first the problem, then candidates. What candidates print goes
nowhere: only verdicts are answers.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from pathlib import Path
from typing import Any

from stretto.errors import StrettoError
from stretto.fabric.process import die_with_parent
from stretto.search.evolve.problem import Verdict

__all__ = ["main"]


def main() -> None:
    """Judge until nobody asks any more."""
    die_with_parent(int(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    begin = json.loads(sys.stdin.readline())
    limit = int(sys.argv[1]) << 20
    try:
        from stretto.search.problems import problem

        judge = problem(begin["problem"], **begin["arguments"])
    except (StrettoError, OSError) as e:
        answers.write(json.dumps({"error": str(e)}) + "\n")
        return
    mapped = Path("/proc/self/statm").read_text().split()[0]  # is not counted
    limit += int(mapped) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing one takes seconds
    answers.write('{"ready": true}\n')
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = judge.judged(asked["text"], asked["rung"], fresh=asked["fresh"])
        except MemoryError:
            found = Verdict(refused=f"it wanted more than {sys.argv[1]} MB")
        except Exception as e:
            found = Verdict(refused=f"its judge raised {type(e).__name__}: {e}"[:400])
        answers.write(json.dumps(_said(found)) + "\n")


def _said(verdict: Verdict) -> dict[str, Any]:
    numbers = {k: getattr(verdict, k) for k in ("cost", "low", "high")}
    said = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
    return {**said, "refused": verdict.refused, "facts": dict(verdict.facts)}


if __name__ == "__main__":
    main()
