"""The processes of a library that is measured: started, asked all at once, ended.

Each library has its own, since what makes it fast is set in the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_group import Hub

ROOT = Path(__file__).resolve().parents[1]
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


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
            out = Path(self.args.out)
            out.mkdir(parents=True, exist_ok=True)
            log = (out / "workers.log").open("a")
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

    def stop(self, why: str = "over") -> None:
        """End the processes."""
        self.dead = why
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        for link in self.links:
            link.close()
