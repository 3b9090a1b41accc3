"""How long a large recording takes to load, and its page to appear.

    export PYTHONPATH=src:.
    python benchmarks/studio.py --out benchmarks/results/studio_202611.json

Ten million events of 1,024 ranks are written to a file; a process of its own loads it
as `stretto studio` does, and says how long that took, of one core, and its memory. A
real browser then opens the page: the first paint is when the overview stands there.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tests.host.studio.browser import browser, executable
from tests.pure.studio.made import recording

from stretto.bench.machine import commit
from stretto.studio import NamedInputs, Studio, StudioServer
from stretto.trace import write

ROOT = Path(__file__).parents[1]
RANKS, CALLS, STEPS = 1024, 900, 10
MACHINE = "dgx_h200x128"


def main() -> None:
    """Measure, print and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path)
    options.add_argument("--calls", type=int, default=CALLS, help=f"[{CALLS}]")
    options.add_argument("--opens", type=int, default=5, help="pages opened [5]")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.trace"
        made = recording(
            RANKS, args.calls, machine=MACHINE, late=611, steps_a_call=STEPS
        )
        write(path, made)
        events = made.num_events
        del made
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        child = context.Process(target=measured, args=(path, args.opens, theirs))
        child.start()
        found = {"events": events, "ranks": RANKS, **about(), **ours.recv()}
        child.join()
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


def measured(path: Path, opens: int, pipe: Connection) -> None:
    """Load, open, and tell the times through a pipe."""
    studio = Studio(NamedInputs(recordings=(path,)))
    began, cpu = time.perf_counter(), time.process_time()
    studio.refresh()
    found = {
        "load_s": time.perf_counter() - began,
        "load_cpu_s": time.process_time() - cpu,
    }
    server = StudioServer(studio)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found["first_paint_s"] = first_paints(server, opens)
    began, cpu = time.perf_counter(), time.process_time()
    studio.warm()
    found["all_views_s"] = time.perf_counter() - began
    found["all_views_cpu_s"] = time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found["peak_gbytes"] = peak * 1024 / 1e9
    server.stop()
    pipe.send(found)


def first_paints(server: StudioServer, opens: int) -> list[float]:
    """Return the seconds from asking for the page until its first view is drawn."""
    if executable() is None:
        return []
    found = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        browser(profile) as page,
    ):
        for _ in range(opens):
            page.go("about:blank")
            began = time.perf_counter()
            page.go(server.address)
            page.until("document.querySelector('main [data-view=\"overview\"]')")
            page.run("new Promise(d => requestAnimationFrame(d))")
            found.append(time.perf_counter() - began)
    return found


def about() -> dict[str, str]:
    """Return what a reader needs to repeat this."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
