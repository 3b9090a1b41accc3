"""Trainers and replicas in processes, for tests and for many kills."""

import contextlib
import json
import os
import subprocess
import time
import uuid
from pathlib import Path

from tests.host import warm

__all__ = ["Process", "Scene"]

ROOT = Path(__file__).resolve().parents[3]
SECRET = b"s" * 32
HERE_S = 30.0


class Process:
    """One rank."""

    def __init__(self, **said):
        said = {"secret": SECRET.hex(), "copies": 2, "epoch": "run", **said}
        said["name"] = f"{said['name']}-{uuid.uuid4().hex[:8]}"
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        self.said = said
        self.process = warm.Popen(
            ["-m", "tests.host.weights.child", json.dumps(said)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        line = self.process.stdout.readline()
        self.address = json.loads(line) if line else ""

    def ask(self, do, **said):
        """Have it do something; None from one that dies of it."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **said}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            return None
        return json.loads(line) if line else None

    @property
    def is_dead(self):
        """Whether it has ended."""
        return self.process.poll() is not None

    def end(self):
        """Kill it."""
        self.process.kill()
        self.process.wait(10)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


class Scene:
    """A trainer of some ranks, replicas of some, and who is connected with whom."""

    def __init__(self, *, far=False, copies=2, epoch="run", fan=0, period=1):
        """Make one; with a `period` every so many elements change, others are kept."""
        self.far, self.copies, self.epoch, self.fan = far, copies, epoch, fan
        self.period = period
        self.trainers, self.replicas, self.counter = [], {}, 0

    def train(self, of):
        """Start a trainer, and connect replicas with it."""
        self.trainers = [
            Process(
                name=f"trainer{rank}", replica="", rank=rank, of=of, epoch=self.epoch,
                far=self.far, fan=self.fan, period=self.period,
            )
            for rank in range(of)
        ]  # fmt: skip
        for ranks in self.replicas.values():
            for one in ranks:
                one.ask("connect", to=[t.address for t in self.trainers])

    def serve(self, replica, of, others=True):
        """Start a replica, connected with the trainer and with other replicas."""
        ranks = [
            Process(
                name=f"{replica}{rank}", replica=replica, rank=rank, of=of,
                copies=self.copies, far=self.far, period=self.period,
            )
            for rank in range(of)
        ]  # fmt: skip
        there = [t.address for t in self.trainers]
        if others:
            there += [p.address for some in self.replicas.values() for p in some]
        for rank, one in enumerate(ranks):
            one.ask("connect", to=[*there, *(p.address for p in ranks[:rank])])
        for one in ranks:
            one.ask("run")
        self.replicas[replica] = ranks

    def push(self, **how):
        """Push the next version from all trainer ranks; return whether all did."""
        self.counter += 1
        said = [t.ask("push", counter=self.counter, **how) for t in self.trainers]
        return all(one == self.counter for one in said)

    def reports(self, replica):
        """Return what a replica's ranks say of themselves; nothing torn among it."""
        found = [one.ask("report") for one in self.replicas[replica]]
        for one in found:
            assert one is None or not one["torn"], one
        return found

    def wait_for(self, replica, counter):
        """Wait until all ranks of a replica have stepped with a version, or later."""
        until = time.monotonic() + HERE_S
        while True:
            found = self.reports(replica)
            if all(one and one["seen"] and one["seen"][-1] >= counter for one in found):
                return
            assert time.monotonic() < until, (counter, found)
            time.sleep(0.005)

    def drop(self, processes):
        """End some processes."""
        for one in processes:
            one.end()

    def end(self):
        """End all."""
        self.drop(self.trainers)
        for ranks in self.replicas.values():
            self.drop(ranks)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()
