"""Synthesised programs beside the shipped ones, on the GPUs of one host.

    python benchmarks/gpu_synth.py --out DIR

The programs in `synth_h200x4` are what `stretto synth` wrote for `h200x4`. Every size
has a few schedules; all of them run both programs in turn, in the same processes and
on the same memory, and what counts is the best of each. bf16, CUDA graphs, the slowest
rank, medians over interleaved repeats, every result checked before it is timed.
Results are written after every row: stopping early loses nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from gpu_group import Hub  # noqa: E402
from gpu_peers import NO_MULTICAST  # noqa: E402

from stretto.bench.machine import commit  # noqa: E402
from stretto.runtime.choice import parse_sizes, spell_size  # noqa: E402

FOUND = Path("benchmarks") / "synth_h200x4"
M = 1 << 20
WHOLE = f"tile_bytes={1 << 30}"
ENGINE = "pull bulk zero_copy copy:engine+push"
SMALL = f"push packets staged tile_bytes={M}"
SHIPPED = {
    "all_gather": ("all_gather/one_shot", "all_gather/ring"),
    "reduce_scatter": ("reduce_scatter/one_shot", "reduce_scatter/ring"),
    "all_reduce": ("all_reduce/two_shot", "all_reduce/ring"),
}
"""What runs fastest from 16M on, or could."""


RING = f"push bulk zero_copy blocks=64 threads=512 {WHOLE}"


def schedules(collective: str, nbytes: int) -> list[str]:
    """Return the schedules worth running at a size, the shipped best among them."""
    if collective == "all_reduce":
        words = [RING, f"push bulk zero_copy blocks=64 threads=256 depth=8 {WHOLE}"]
        if nbytes > 64 * M:
            words.append(f"{ENGINE} blocks=64 threads=512 {WHOLE}")
        return words
    bulk = [
        f"push bulk zero_copy blocks=128 threads={t} depth=8 {WHOLE}"
        for t in (256, 512)
    ]
    if nbytes <= 16 * M:
        packets = [f"{SMALL} blocks=128 threads=768 depth=1"]
        packets.append(f"{SMALL} blocks=128 threads=256 depth=8")
        return [RING, bulk[0], *packets]
    if collective == "reduce_scatter":
        pull = f"pull bulk zero_copy blocks=128 threads=512 depth=8 {WHOLE}"
        return [RING, *bulk, pull]
    return [RING, *bulk, *["push engine zero_copy blocks=2"] * (nbytes >= 256 * M)]


def variants(collective: str, nbytes: int) -> list[tuple[str, str]]:
    """Return (who, `target|schedule`) of everything that runs at a size."""
    files = sorted((ROOT / FOUND).glob(f"{collective}*.py"))
    targets = [("shipped", t) for t in SHIPPED[collective]]
    targets += [("found", str(f.relative_to(ROOT))) for f in files]
    return [
        (who, f"{target}|{words}")
        for words in schedules(collective, nbytes)
        for who, target in targets
        if "ring" not in target or words == RING
    ]


def cases(args: argparse.Namespace) -> list[tuple[str, int]]:
    """Return every (collective, size), small sizes first."""
    wanted = args.collectives.split(",")
    return [(c, s) for s in parse_sizes(args.sizes) for c in wanted]


def plan_of(variant: str, ranks: int) -> Any:
    """Return the proved plan of a variant."""
    from stretto.cli.targets import build, find
    from stretto.compiler.lower import lower
    from stretto.compiler.plan import Schedule
    from stretto.compiler.verify import verify, verify_plan

    target, words = variant.split("|")
    program = build(find(target), ranks, {})
    return verify_plan(lower(verify(program), Schedule.parse(words)))


def compile_one(job: tuple[str, int, int]) -> str:
    """Compile one variant of one rank into the disk cache; return what went wrong."""
    variant, rank, ranks = job
    try:
        from stretto.executors.cuda.codegen.compile import compile_kernel
        from stretto.executors.cuda.codegen.generate import kernel_of
        from stretto.program.collectives import Operator

        plan = plan_of(variant, ranks)
        if plan.value.schedule.protocol == "engine":
            return ""
        kernel = kernel_of(plan, rank=rank, dtype="bfloat16", op=Operator.SUM)
        compile_kernel(kernel, arch=(9, 0))
    except Exception as e:
        return f"{variant}: {type(e).__name__}: {e}"
    return ""


def warm(args: argparse.Namespace) -> None:
    """Compile every kernel, in parallel."""
    every = {v for case in cases(args) for _, v in variants(*case)}
    jobs = [(v, r, args.ranks) for v in sorted(every) for r in range(args.ranks)]
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, min(len(jobs), (os.cpu_count() or 2) - 4))) as pool:
        wrong = sorted({w for w in pool.map(compile_one, jobs) if w})
    took = time.monotonic() - began
    print(f"{len(jobs)} kernels in {took:.1f} s; {len(wrong)} variants failed")
    for line in wrong[:8]:
        print("  ", line[:300], flush=True)


class Rank:
    """One process: runs all cases in step with the others."""

    def __init__(self, args: argparse.Namespace) -> None:
        from gpu_worker import OurCalls

        class Found(OurCalls):
            """Variants are `FILE.py|schedule` too."""

            def _plan(self, variant: str) -> Any:
                if variant not in self.plans:
                    self.plans[variant] = plan_of(variant, self.ranks)
                return self.plans[variant]

        self.args = args
        self.worker = Found(args)
        self.rows: list[dict[str, Any]] = []
        self.failures: list[str] = []
        before = Path(args.out) / "synth.json"
        if args.first and before.exists():
            kept = json.loads(before.read_text())
            self.rows, self.failures = kept["rows"], kept["failures"]

    def together(self, verb: str, **how: Any) -> list[dict[str, Any]] | None:
        """Do something on every rank; return all answers, or None when one failed."""
        try:
            said = getattr(self.worker, verb)(**how)
        except Exception as e:
            where = traceback.format_tb(e.__traceback__)[-1].strip()
            said = {"error": f"{type(e).__name__}: {e} [{where}]"[:600]}
        answers = [dict(a) for a, _ in self.worker.group.exchange(said)]
        wrong = [a.get("error") or a.get("wrong") for a in answers]
        if any(wrong):
            self.failures.append(f"{verb} {how}: {next(w for w in wrong if w)}")
            if any("error" in a for a in answers):
                self.worker.reset()
            return None
        return answers

    def case(self, collective: str, nbytes: int) -> None:
        """Check every variant, then time those that are right, in turn."""
        right = []
        for who, variant in variants(collective, nbytes):
            how = {"collective": collective, "nbytes": nbytes, "variant": variant}
            answers = self.together("prepare", **how)
            if answers is None:
                continue
            sums = {a["checksum"] for a in answers}
            if collective == "all_reduce" and len(sums) > 1:
                self.failures.append(f"{how}: ranks hold different bits")
                continue
            right.append((who, variant))
        for one in right:  # what a failure after it has swept away
            how = {"collective": collective, "nbytes": nbytes, "variant": one[1]}
            if " ".join(map(str, how.values())) not in self.worker.kept:
                self.together("prepare", **how)
        samples: dict[tuple[str, str], list[float]] = {r: [] for r in right}
        for _ in range(self.args.repeats):
            for one in right:
                how = {"collective": collective, "nbytes": nbytes, "variant": one[1]}
                answers = self.together(
                    "time", replays=10 if nbytes <= 64 * M else 4, **how
                )
                if answers is not None:
                    samples[one].append(max(a["us"] for a in answers))
        self.worker.drop()
        medians = {r: statistics.median(s) for r, s in samples.items() if s}
        row: dict[str, Any] = {"collective": collective, "nbytes": nbytes}
        for who in ("shipped", "found"):
            best = sorted((us, v) for (w, v), us in medians.items() if w == who)
            if best:
                row[f"{who}_us"], row[who] = best[0]
        if "shipped_us" in row and "found_us" in row:
            row["ratio"] = row["shipped_us"] / row["found_us"]
        self.rows.append(row)

    def write(self) -> None:
        """Write JSON and Markdown."""
        import torch

        out = Path(self.args.out)
        document = {
            "command": os.environ["SYNTH_COMMAND"],
            "commit": commit(),
            "gpu": f"{self.args.ranks}x {torch.cuda.get_device_name()}",
            "dtype": "bfloat16",
            "rows": self.rows,
            "failures": self.failures,
        }
        (out / "synth.json").write_text(json.dumps(document, indent=1))
        (out / "synth.md").write_text(markdown(document))


def markdown(document: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        f"# Synthesised and shipped programs on {document['gpu']}",
        "",
        f"`{document['command']}` at {document['commit']}. bf16, CUDA graphs, us,",
        "the slowest rank, medians over interleaved repeats; results checked.",
        "",
        "| collective | S | shipped | found | shipped / found | busbw | how |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in document["rows"]:
        if "ratio" not in r:
            lines.append(
                f"| {r['collective']} | {spell_size(r['nbytes'])} | - | - | - | - | - |"
            )
            continue
        how = r["found"].replace("benchmarks/", "").replace("|", ", ")
        than = r["shipped"].replace("|", ", ")
        factor = 1.5 if r["collective"] == "all_reduce" else 0.75  # of four ranks
        bus = factor * r["nbytes"] / r["found_us"] / 1e3
        lines.append(
            f"| {r['collective']} | {spell_size(r['nbytes'])} | {r['shipped_us']:.2f} |"
            f" {r['found_us']:.2f} | {r['ratio']:.3f} | {bus:.0f} |"
            f" {how}; shipped: {than} |"
        )
    if document["failures"]:
        lines += ["", "Failures:", "", *(f"* {f[:300]}" for f in document["failures"])]
    return "\n".join(lines) + "\n"


def child(args: argparse.Namespace) -> None:
    """Be one rank."""
    me = Rank(args)
    sys.stdin.readline()  # the kernels are compiled
    for number, case in enumerate(cases(args)):
        if number < args.first:
            continue
        over = time.monotonic() > args.until
        if any(a["over"] for a, _ in me.worker.group.exchange({"over": over})):
            me.failures.append(f"no time left for {case}")
            continue
        me.case(*case)
        if args.rank == 0:
            me.write()
            (Path(args.out) / "synth.next").write_text(str(number + 1))
    if args.rank == 0:
        me.write()


def start(args: argparse.Namespace, first: int) -> list[subprocess.Popen[str]]:
    """Start the ranks."""
    hub = Hub(args.ranks)
    log = (Path(args.out) / "synth.log").open("a")
    started = []
    for rank in range(args.ranks):
        fd = hub.children[rank].fileno()
        command = [sys.executable, str(ROOT / "benchmarks" / "gpu_synth.py")]
        command += ["--rank", str(rank), "--fd", str(fd), "--first", str(first)]
        command += ["--until", str(args.until), "--out", args.out]
        command += ["--sizes", args.sizes, "--collectives", args.collectives]
        command += ["--repeats", str(args.repeats), "--ranks", str(args.ranks)]
        environment = {**os.environ, **NO_MULTICAST, "CUDA_MODULE_LOADING": "EAGER"}
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[fd],
                env=environment | {"LOCAL_RANK": str(rank)},
                cwd=ROOT,
                text=True,
            )
        )
    for link in hub.children:
        link.close()
    return started


def attend(args: argparse.Namespace, ranks: list[subprocess.Popen[str]]) -> bool:
    """Let the ranks run; return whether all came to their end."""
    for one in ranks:
        assert one.stdin is not None, "started with a pipe"
        one.stdin.write("go\n")
        one.stdin.flush()
    stop_at = time.monotonic() + max(1.0, args.until + 8 - time.monotonic())
    codes: list[int | None] = [None]
    while time.monotonic() < stop_at:
        codes = [one.poll() for one in ranks]
        if None not in codes or any(codes):
            break
        time.sleep(0.05)
    for one in ranks:
        if one.poll() is None:
            one.kill()
        one.wait()
    return not any(codes) and None not in codes


def main() -> int:
    """Compile, start the ranks, start them again after the case that killed one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="16M:1G:4")
    parser.add_argument("--collectives", default=",".join(SHIPPED))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--time-budget", type=float, default=55)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    for name, kind in (("rank", int), ("fd", int), ("first", int), ("until", float)):
        parser.add_argument(f"--{name}", type=kind, default=0, help=argparse.SUPPRESS)
    parser.set_defaults(answers=-1, meet="")
    args = parser.parse_args()
    args.largest = max(parse_sizes(args.sizes))
    if args.fd:
        child(args)
        return 0
    os.environ["SYNTH_COMMAND"] = " ".join(["python", *sys.argv])
    os.chdir(ROOT)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    args.until = time.monotonic() + args.time_budget
    mark = Path(args.out) / "synth.next"
    mark.write_text("0")
    for attempt in range(3):
        first = int(mark.read_text()) + (attempt > 0)
        if first >= len(cases(args)) or time.monotonic() > args.until - 5:
            break
        ranks = start(args, first)
        if attempt == 0:
            warm(args)
        if attend(args, ranks):
            break
        print(f"a rank fell at case {mark.read_text()}; see synth.log", flush=True)
    report = Path(args.out) / "synth.md"
    print(report.read_text() if report.exists() else "nothing was measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
