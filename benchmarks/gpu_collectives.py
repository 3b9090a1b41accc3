"""Collectives on the GPUs of one host: stretto beside its peers, in one run.

    python benchmarks/gpu_collectives.py --ranks 4 --time-budget 480 --out DIR

bf16, CUDA graphs, the slowest rank, medians over interleaved repeats, every variant
checked on fresh data before it is timed. Peers run in processes of their own, since
what makes them fast is set in the environment; only one set is at work at a time.
Results are written after every row: stopping early loses nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from gpu_candidates import candidates, unordered  # noqa: E402
from gpu_group import Hub  # noqa: E402

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
K, M, G = 1 << 10, 1 << 20, 1 << 30
RECORDED_MSCCLPP = {
    "all_reduce": {
        K: 3.0, 4 * K: 3.3, 16 * K: 4.0, 64 * K: 5.3, 256 * K: 6.6, M: 10.4,
        4 * M: 25.0, 16 * M: 84.4, 64 * M: 324, 256 * M: 1239,
    },
    "all_gather": {
        K: 6.1, 4 * K: 6.1, 16 * K: 6.3, 64 * K: 6.8, 256 * K: 7.1, M: 8.2,
        4 * M: 16.6, 16 * M: 45.9, 64 * M: 165, 256 * M: 632,
    },
}  # fmt: skip
"""us, 4x H200, MSCCL++ 0.9 without multicast; of 2026-11-21, not of this run."""


class PeerSet:
    """The processes of one peer, one a rank, asked all at once."""

    def __init__(self, kind: str, args: argparse.Namespace) -> None:
        self.kind, self.args = kind, args
        self.processes: list[subprocess.Popen[str]] = []
        self.links: list[Any] = []
        self.dead = ""
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Start the processes; `ready` waits for them."""
        self.starts += 1
        self.dead = ""
        self.hub = Hub(self.args.ranks)
        meet = Path(tempfile.mkdtemp()) / "meet"
        environment = {**os.environ, **NO_MULTICAST, "CUDA_MODULE_LOADING": "EAGER"}
        environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        if self.kind.startswith("nccl"):  # said when a call is captured, not replayed
            environment |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}
        if self.kind == "nccl_mix0":
            environment["NCCL_GRAPH_MIXING_SUPPORT"] = "0"
        self.processes, self.links = [], []
        for rank in range(self.args.ranks):
            reading, writing = os.pipe()
            fd = self.hub.children[rank].fileno()
            command = [sys.executable, str(ROOT / "benchmarks" / "gpu_worker.py")]
            for name, value in {
                "rank": rank, "ranks": self.args.ranks, "fd": fd, "answers": writing,
                "largest": self.args.largest, "kind": self.kind, "meet": meet,
            }.items():  # fmt: skip
                command += [f"--{name}", str(value)]
            environment["LOCAL_RANK"] = str(rank)
            log = (Path(self.args.out) / "workers.log").open("a")
            self.processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=[fd, writing],
                    env=dict(environment),
                    text=True,
                )
            )
            os.close(writing)
            self.links.append(os.fdopen(reading, "rb", buffering=0))
        for link in self.hub.children:
            link.close()
        self._left = [b""] * self.args.ranks

    def ready(self, timeout: float) -> None:
        """Wait until all are connected."""
        self._gather(timeout)
        if self.dead:
            print(f"{self.kind}: {self.dead[:800]}", flush=True)

    def ask(self, verb: str, timeout: float = 40.0, **how: Any) -> list[Any] | None:
        """Return every rank's answer; None when the set is, or fell, silent."""
        if self.dead:
            return None
        line = json.dumps({"verb": verb, **how}) + "\n"
        try:
            for process in self.processes:
                assert process.stdin is not None, "started with a pipe"
                process.stdin.write(line)
                process.stdin.flush()
        except OSError as e:
            self.stop(f"{verb}: {e}")
            return None
        return self._gather(timeout, verb)

    def _gather(self, timeout: float, verb: str = "start") -> list[Any] | None:
        answers: dict[int, Any] = {}
        stop_at = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for rank, link in enumerate(self.links):
                selector.register(link, selectors.EVENT_READ, rank)
            while len(answers) < len(self.links):
                events = selector.select(max(0.0, stop_at - time.monotonic()))
                if not events:
                    silent = set(range(len(self.links))) - set(answers)
                    self.stop(f"{verb}: ranks {sorted(silent)} silent for {timeout} s")
                    return None
                for key, _ in events:
                    rank = key.data
                    more = os.read(key.fd, 1 << 16)
                    if not more:
                        self.stop(f"{verb}: rank {rank} died")
                        return None
                    self._left[rank] += more
                    if b"\n" in self._left[rank]:
                        line, _, self._left[rank] = self._left[rank].partition(b"\n")
                        answers[rank] = json.loads(line)
                        selector.unregister(key.fileobj)
        if verb == "start":
            wrong = [a["error"] for a in answers.values() if "error" in a]
            if wrong:
                self.stop(wrong[0])
        return [answers[r] for r in sorted(answers)]

    def hold(self, still: bool) -> None:
        """Stop the processes where they are, or let them go on."""
        for process in () if self.dead else self.processes:
            process.send_signal(signal.SIGSTOP if still else signal.SIGCONT)

    def stop(self, why: str = "over") -> None:
        """End the processes."""
        self.dead = why
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        for link in self.links:
            link.close()


class Run:
    """One measurement: sets, rows, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = args.began
        self.rows: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.eager: list[dict[str, Any]] = []
        self.movers_lost: set[str] = set()
        self.sets = {k: PeerSet(k, args) for k in args.sets.split(",")}
        for one in self.sets.values():
            one.ready(90)
            if one.dead:
                self.failures.append(f"{one.kind} does not start: {one.dead[:500]}")
        self.say(f"sets ready: {[k for k, s in self.sets.items() if not s.dead]}")

    def left(self) -> float:
        """Return the seconds left."""
        return self.args.time_budget - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        """Print with the time."""
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def prepare(self, kind: str, collective: str, nbytes: int, variant: str) -> bool:
        """Prepare one variant everywhere; return whether it is right."""
        one = self.sets[kind]
        how = {"collective": collective, "nbytes": nbytes, "variant": variant}
        answers = one.ask("prepare", **how)
        label = f"{kind} {collective} {nbytes} {variant}"
        if answers is None:
            self.failures.append(f"{label}: {one.dead}")
            self.say(self.failures[-1])
            self.revive(kind)
            return False
        wrong = [a.get("error") or a.get("wrong") for a in answers]
        same = len({a.get("checksum") for a in answers}) == 1
        if kind == "ours" and collective == "all_reduce" and not same:
            wrong.append("ranks hold different bits")
        if any(wrong):
            self.failures.append(f"{label}: {next(w for w in wrong if w)[:400]}")
            self.say(self.failures[-1][:300])
            if any("error" in a for a in answers) and kind == "ours":
                said = one.ask("reset")
                if said is None or any("error" in a for a in said):
                    one.stop("its GPU is lost")
                    self.revive(kind)
            return False
        return True

    def revive(self, kind: str) -> None:
        """Start our set again, when it fell and there is time."""
        one = self.sets[kind]
        if kind == "ours" and one.dead and one.starts < 4 and self.left() > 60:
            one.start()
            one.ready(60)

    def time(
        self, kind: str, collective: str, nbytes: int, variant: str, replays: int
    ) -> float | None:
        """Return the slowest rank's microseconds."""
        how = {"collective": collective, "nbytes": nbytes, "variant": variant}
        answers = self.sets[kind].ask("time", replays=replays, **how)
        if answers is None or any("error" in a for a in answers):
            said = answers and next(a["error"] for a in answers if "error" in a)
            self.failures.append(f"time {kind} {how}: {said or self.sets[kind].dead}")
            if kind == "ours" and answers is not None:
                self.sets[kind].ask("reset")
            return None
        return max(a["us"] for a in answers)

    def peers(self, collective: str, nbytes: int) -> list[tuple[str, str]]:
        """Return the peers' variants that are right at a size."""
        wanted = [("nccl", "default"), ("nccl", "symm")]
        wanted += [("nccl_mix0", "default"), ("nccl_mix0", "symm")]
        if collective == "all_reduce" and nbytes <= 64 * M:
            wanted += [("torch_symm", "two_shot")]
            wanted += [("torch_symm", "one_shot")] * (nbytes <= M)
        return [
            (k, v)
            for k, v in wanted
            if k in self.sets
            and not self.sets[k].dead
            and self.prepare(k, collective, nbytes, v)
        ]

    def sweep(
        self, collective: str, nbytes: int, variants: list[tuple[str, str]]
    ) -> list[tuple[float, str]]:
        """Return our variants that are right, fastest first, quickly timed."""
        found = []
        if "ours" not in self.sets:
            return []
        for name, schedule in variants:
            if self.sets["ours"].dead or self.left() < 20:
                break
            variant = f"{name}|{schedule}"
            mover = {"tma", "unordered"} & set(schedule.split())
            if mover & self.movers_lost:
                continue
            if not self.prepare("ours", collective, nbytes, variant):
                self.movers_lost |= mover  # what fails once would cost every size
                continue
            us = self.time("ours", collective, nbytes, variant, 5)
            if us is not None:
                found.append((us, variant))
        return sorted(found)

    def row(self, collective: str, nbytes: int) -> None:
        """Measure one size of one collective, everybody in turn."""
        failed = len(self.failures)
        tried = candidates(collective, nbytes, self.args.ranks)
        ranked = self.sweep(collective, nbytes, tried)
        named = self.sweep(collective, nbytes, unordered(collective, nbytes))
        runners = self.peers(collective, nbytes)
        best = [variant for _, variant in ranked[:3]]
        if len(self.failures) > failed:  # what was prepared may be gone with a session
            best = [v for v in best if self.prepare("ours", collective, nbytes, v)]
        runners += [("ours", variant) for variant in best]
        samples: dict[tuple[str, str], list[float]] = {r: [] for r in runners}
        replays = 10 if nbytes <= 64 * M else 4
        for _ in range(self.args.repeats):
            for kind, variant in runners:
                us = self.time(kind, collective, nbytes, variant, replays)
                if us is not None:
                    samples[kind, variant].append(us)
        row: dict[str, Any] = {"collective": collective, "nbytes": nbytes}
        row["samples"] = {f"{k} {v}": s for (k, v), s in samples.items()}
        row["sweep"] = [{"variant": v, "us": us} for us, v in ranked]
        row["unordered"] = [{"variant": v, "us": us} for us, v in named]
        row["few_sms"] = fewest(ranked)
        medians = {r: statistics.median(s) for r, s in samples.items() if s}
        theirs = {f"{k} {v}": m for (k, v), m in medians.items() if k != "ours"}
        recorded = RECORDED_MSCCLPP.get(collective, {}).get(nbytes)
        if recorded and self.args.ranks == 4:
            theirs["mscclpp (recorded)"] = recorded
        row["peers_us"] = theirs
        ours = sorted((m, v) for (k, v), m in medians.items() if k == "ours")
        if ours:
            row["ours_us"], row["ours"] = ours[0]
            row["sms"] = sms(ours[0][1])
            row["floor_us"] = floor_us(collective, nbytes, self.args.ranks)
            row["busbw_gbps"] = busbw(collective, nbytes, self.args.ranks, ours[0][0])
        if theirs:
            row["best_peer"] = min(theirs, key=lambda k: theirs[k])
            row["best_peer_us"] = theirs[row["best_peer"]]
        if ours and theirs:
            row["speedup"] = row["best_peer_us"] / row["ours_us"]
            if "nccl default" in theirs:
                row["speedup_nccl"] = theirs["nccl default"] / row["ours_us"]
        self.rows.append(row)
        self.say(
            f"{collective:14} {size(nbytes):>5}  "
            f"ours {row.get('ours_us', math.nan):9.2f}"
            f"  best peer {row.get('best_peer_us', math.nan):9.2f}"
            f" ({row.get('best_peer', '-')})  {row.get('ours', '')}"
        )
        if nbytes == K and collective == "all_reduce":
            self.measure_eager(collective, nbytes, runners)
        for one in self.sets.values():
            one.ask("drop")
        self.write()

    def measure_eager(
        self, collective: str, nbytes: int, runners: list[tuple[str, str]]
    ) -> None:
        """Measure calls from Python, back to back, one synchronisation at the end.

        They take the CPU's time, so the other sets' processes stand still.
        """
        for kind, variant in runners:
            others = [one for one in self.sets.values() if one.kind != kind]
            for one in others:
                one.hold(still=True)
            how = {"collective": collective, "nbytes": nbytes, "variant": variant}
            for _ in range(3):
                answers = self.sets[kind].ask("eager", calls=1000, **how)
                if answers and not any("error" in a for a in answers):
                    slowest = max(answers, key=lambda a: a["us"])
                    self.eager.append({**how, "set": kind, **slowest})
            for one in others:
                one.hold(still=False)
        for e in self.eager:
            self.say(f"eager {e['set']} {e['variant']}: {e['us']:.2f} us")

    def write(self) -> None:
        """Write JSON and Markdown."""
        document = {
            "command": sys.argv,
            "commit": _commit(),
            "machine": self.args.machine,
            "ranks": self.args.ranks,
            "dtype": "bfloat16",
            "rows": self.rows,
            "eager": self.eager,
            "failures": self.failures,
            "nccl_channels": channels(Path(self.args.out) / "workers.log"),
            "seconds": time.monotonic() - self.began,
        }
        out = Path(self.args.out)
        (out / "collectives.json").write_text(json.dumps(document, indent=1))
        (out / "collectives.md").write_text(markdown(document))

    def close(self) -> None:
        """End all processes."""
        for one in self.sets.values():
            if not one.dead:
                one.stop()


def sms(variant: str) -> int:
    """Return the SMs that a variant keeps: a block each; copy engines keep none."""
    words = variant.partition("|")[2].split()
    if "engine" in words:
        return 0
    return max([1, *(int(w[7:]) for w in words if w.startswith("blocks="))])


def fewest(ranked: list[tuple[float, str]]) -> list[dict[str, Any]]:
    """Return the fastest variant for every number of SMs, while fewer cost more."""
    best: dict[int, tuple[float, str]] = {}
    for us, variant in reversed(ranked):
        best[sms(variant)] = (us, variant)
    kept, least = [], math.inf
    for count in sorted(best):
        if best[count][0] < least:
            least = best[count][0]
            kept.append({"sms": count, "us": least, "variant": best[count][1]})
    return kept


def floor_us(collective: str, nbytes: int, ranks: int) -> float:
    """Return the model's lower bound, in us (docs/notes/cuda-tuning.md).

    A launch and a hop in 2.3, a further hop in 1.8, 340 GB/s for the packets of a
    single shot and 370 for what is large.
    """
    part = (ranks - 1) / ranks * nbytes / 1e3
    if collective != "all_reduce":
        return 2.3 + part / 370
    return min(2.3 + (ranks - 1) * nbytes / 340e3, 2.3 + 1.8 + 2 * part / 370)


def channels(log: Path) -> dict[str, str]:
    """Return what NCCL says it runs a call on, by collective and bytes."""
    found = re.findall(
        r"(\w+): (\d+) Bytes -> Algo (\S+) proto (\S+) channel\S*?\{(\d+)\.\.(\d+)\}",
        log.read_text(errors="replace") if log.exists() else "",
    )
    return {
        f"{name} {nbytes}": f"{algo} {proto}, {int(high) - int(low) + 1} channels"
        for name, nbytes, algo, proto, low, high in found
    }


def busbw(collective: str, nbytes: int, ranks: int, us: float) -> float:
    """Return bus bandwidth in 10^9 bytes a second."""
    factor = (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks
    return nbytes * factor / us / 1e3


def size(nbytes: int) -> str:
    """Return a size as people write it."""
    for unit, scale in (("G", G), ("M", M), ("K", K)):
        if nbytes >= scale:
            return f"{nbytes // scale}{unit}"
    return str(nbytes)


def markdown(document: dict[str, Any]) -> str:
    """Return the tables."""
    machine = document["machine"]
    about = (
        f"bf16, CUDA graphs, median of the slowest rank, us. Commit "
        f"{document['commit']}; `{' '.join(document['command'])}`; driver "
        f"{machine.get('driver')}, torch {machine['torch']}, NCCL {machine['nccl']}. "
        "MSCCL++ is recorded on such a machine on 2026-11-21, not in this run."
    )
    lines = [f"# Collectives on {machine['gpu']}, {document['ranks']} ranks", ""]
    lines += [about, ""]
    for collective in COLLECTIVES:
        rows = [r for r in document["rows"] if r["collective"] == collective]
        if not rows:
            continue
        names = sorted({n for r in rows for n in r["peers_us"]})
        lines += [f"## {collective}", ""]
        head = ["S", *names, "ours", "best peer / ours", "NCCL / ours", "busbw"]
        head += ["model floor", "over it", "SMs", "how"]
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for r in sorted(rows, key=lambda r: r["nbytes"]):
            cells = [size(r["nbytes"])]
            cells += [_figure(r["peers_us"].get(n)) for n in names]
            cells += [_figure(r.get("ours_us")), _figure(r.get("speedup"))]
            cells += [_figure(r.get("speedup_nccl")), _figure(r.get("busbw_gbps"))]
            cells += [_figure(r.get("floor_us"))]
            over = r["ours_us"] - r["floor_us"] if "ours_us" in r else None
            cells += [_figure(over), str(r.get("sms", "-"))]
            cells.append(str(r.get("ours", "-")).replace("|", ", "))
            lines.append("| " + " | ".join(cells) + " |")
        for key, label in (("speedup", "best peer"), ("speedup_nccl", "NCCL default")):
            ratios = [r[key] for r in rows if key in r]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                lines += ["", f"Geomean over {label}: {mean:.3f}"]
        lines.append("")
    lines += _few(document)
    if document["eager"]:
        lines += ["## Eager all_reduce 1K from Python", ""]
        lines += [
            "Back to back with one synchronisation at the end; and one a call.",
            "",
        ]
        lines += [
            f"* {e['set']} {e['variant']}: {e['us']:.2f} us a call, "
            f"{e['issue_us']:.2f} to issue; {_figure(e.get('alone_us'))} each alone"
            for e in document["eager"]
        ]
    return "\n".join(lines) + "\n"


def _few(document: dict[str, Any]) -> list[str]:
    """Return the lines about few SMs, sums in no order, and NCCL's channels."""
    lines = ["## Large messages on few SMs", ""]
    for r in document["rows"]:
        if r["nbytes"] < 64 * M:
            continue
        shown = "; ".join(f"{k['sms']}: {k['us']:.0f}" for k in r.get("few_sms", ()))
        label = f"* {r['collective']} {size(r['nbytes'])}"
        lines.append(f"{label}, us by SMs: {shown} (a quick sweep)")
        lines += [
            f"{label}, unordered, asked for: {k['us']:.0f} us, {k['variant']}"
            for k in r.get("unordered", ())[:1]
        ]
    said = document.get("nccl_channels", {})
    large = [k for k in said if int(k.split()[1]) >= 16 * M]
    lines += [f"* NCCL, {k} elements or bytes: {said[k]}" for k in large]
    return [*lines, ""]


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return os.environ.get("STRETTO_COMMIT") or done.stdout.strip() or "unknown"


def _machine() -> dict[str, Any]:
    import torch

    query = "--query-gpu=name,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        ).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        done = []
    first = (done or ["unknown, unknown"])[0].split(",")
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if done else "unknown"
    return {
        "gpu": f"{len(done)}x {first[0].strip()}",
        "driver": first[-1].strip(),
        "torch": torch.__version__,
        "nccl": nccl,
        "python": platform.python_version(),
    }


def _compile(job: tuple[str, int, int]) -> str:
    """Compile one variant of one rank into the disk cache."""
    variant, rank, ranks = job
    try:
        from stretto import algorithms
        from stretto.collectives import Operator
        from stretto.executors.cuda.compile import compile_kernel
        from stretto.executors.cuda.generate import generate
        from stretto.executors.cuda.halves import hands_round_on_engine, in_halves
        from stretto.lower import lower
        from stretto.plan import Schedule
        from stretto.verify import verify

        name, schedule = variant.split("|")
        parsed = Schedule.parse(schedule)
        if parsed.protocol != "engine":
            plan = lower(verify(algorithms.get(name).build(ranks)), parsed)
            if hands_round_on_engine(plan):
                plan, _ = in_halves(plan)
            kernel = generate(plan, rank=rank, dtype="bfloat16", op=Operator.SUM)
            compile_kernel(kernel, arch=(9, 0))
    except Exception as e:
        return f"{variant}: {type(e).__name__}: {e}"
    return ""


def warm(args: argparse.Namespace, sizes: list[int]) -> None:
    """Compile every candidate in parallel, before the GPUs are touched."""
    from concurrent.futures import ProcessPoolExecutor

    variants = {
        f"{name}|{schedule}"
        for collective in args.collectives.split(",")
        for nbytes in sizes
        for name, schedule in (
            *candidates(collective, nbytes, args.ranks),
            *unordered(collective, nbytes),
        )
    }
    jobs = [(v, r, args.ranks) for v in sorted(variants) for r in range(args.ranks)]
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2)) as pool:
        wrong = [w for w in pool.map(_compile, jobs, chunksize=4) if w]
    print(f"{len(jobs)} kernels of {len(variants)} variants compiled in", end=" ")
    print(f"{time.monotonic() - began:.1f} s; {len(wrong)} failed", flush=True)
    for line in sorted(set(wrong))[:8]:
        print("  ", line[:300], flush=True)


def parse_sizes(text: str) -> list[int]:
    """Read `1K:1G:4`, or a comma-separated list."""
    scale = {"K": K, "M": M, "G": G}

    def one(word: str) -> int:
        return int(word[:-1]) * scale[word[-1]] if word[-1] in scale else int(word)

    if ":" not in text:
        return [one(w) for w in text.split(",")]
    first, last, *step = text.split(":")
    factor = int(step[0]) if step else 2
    found = [one(first)]
    while found[-1] * factor <= one(last):
        found.append(found[-1] * factor)
    return found


def main() -> int:
    """Measure until all is measured or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", default="1K:1G:4")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sets", default="ours,nccl,nccl_mix0,torch_symm")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--time-budget", type=float, default=480)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    sizes = parse_sizes(args.sizes)
    args.largest = max(sizes)
    args.began = time.monotonic()
    args.machine = _machine()
    if "ours" in args.sets.split(","):
        warm(args, sizes)
    run = Run(args)
    try:
        for nbytes in sizes:  # all collectives at a size, so that time cuts off sizes
            for collective in args.collectives.split(","):
                if run.left() < 15:
                    run.failures.append(f"no time for {collective} {nbytes}")
                    continue
                run.row(collective, nbytes)
    finally:
        run.write()
        run.close()
    print(markdown(json.loads((Path(args.out) / "collectives.json").read_text())))
    print(f"{len(run.failures)} failures")
    for line in run.failures[:30]:
        print("  ", line[:300])
    return 0


if __name__ == "__main__":
    sys.exit(main())
