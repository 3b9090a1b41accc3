"""A rank of a trainer or of a replica, in a process: it writes and checks stamps.

All elements of a version are its counter, or every eighth is, where only changes are
to be read. Who is to die kills itself at a phase.
"""

import json
import os
import signal
import sys
import threading

import numpy as np
from tests.host.weights.stamped import LAYERS, SHAPE, here, stamp

from stretto import weights
from stretto.errors import StrettoError, TransferError
from stretto.transfer import Engine
from stretto.weights import pulling
from stretto.weights.changes import NewElements
from stretto.weights.copies import Copy
from stretto.weights.early import Following
from stretto.weights.member import Member
from stretto.weights.policy import Policy
from stretto.weights.pulling import Puller
from stretto.weights.recent import Recent

PHASES = {
    "writing": (Copy, "take_back"),
    "making": (Copy, "wait"),
    "offering": (Copy, "offer"),
    "granting": (Copy, "hold"),
    "planning": (Puller, "pull"),
    "reading": (Puller, "_begin"),
    "keeping": (Recent, "keep"),
    "updating": (Puller, "update"),
    "changing": (NewElements, "write"),
    "handing on": (Copy, "came"),
    "following": (Following, "watch"),
    "reporting": (Policy, "_report"),
    "switching": (Member, "tell_offer"),
    "stepping": (Policy, "_turn_to"),
}


def die_at(phase, nth):
    """Have this process killed as it enters a phase for the nth time."""
    owner, name = PHASES[phase]
    inner, left = getattr(owner, name), [nth]

    def dying(*args, **how):
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*args, **how)

    setattr(owner, name, dying)
    _lives.append(lambda: setattr(owner, name, inner))


def live():
    """Take back that this process is to die."""
    while _lives:
        _lives.pop()()
    return True


_lives = []


class Trainer:
    """Pushes versions of what it holds: half of every tensor, or all of it."""

    def __init__(self, engine, said):
        self.rank, of, self.period = said["rank"], said["of"], said["period"]
        self.tensors, layouts = here(self.rank, of)
        self.source = weights.publish(
            engine, "policy", self.tensors, rank=self.rank, num_ranks=of,
            epoch=said["epoch"], layouts=layouts, patience=2.0, fan=said["fan"],
            delta=self.period > 1 or None,
        )  # fmt: skip

    def push(self, counter, in_place=False):
        for array in self.tensors.values():
            array[...] = stamp(counter, self.period)
        push = self.source.push(counter, in_place=in_place)
        if in_place:
            push.wait(20)
            push.end()
        return counter


class Rank:
    """Steps all the time, and compares every element with the version's stamp."""

    def __init__(self, engine, said):
        self.rank, self.of, self.period = said["rank"], said["of"], said["period"]
        into, _ = here(self.rank, self.of)
        names = {
            "both": weights.Cat("w0", "w1") if self.of == 1 else weights.Cat(
                *(weights.Part(n, rank=self.rank, of=self.of) for n in ("w0", "w1"))
            )
        }  # fmt: skip
        into["both"] = np.concatenate([into["w0"], into["w1"]])
        _, layouts = here(self.rank, self.of)
        self.policy = weights.subscribe(
            engine, "policy", into=into, names=names, replica=said["replica"],
            rank=self.rank, num_ranks=self.of, copies=said["copies"],
            layouts=layouts, patience=2.0, deadline=20.0,
        )  # fmt: skip
        self.seen, self.torn, self.fault, self.steps = [], [], "", 0
        self.updates = 0

        def update(*how):
            self.updates += 1
            return Puller.update(self.policy.puller, *how)

        self.policy.puller.update = update
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def run(self):
        self._thread.start()

    def _run(self):
        while not self._ends.is_set():
            try:
                with self.policy.step(timeout=0.2) as version:
                    self._check(version)
                if self.rank == 0:
                    self._ends.wait(0.002)  # a step takes the first its time
            except TransferError as e:
                self.fault = str(e)
                if "is gone" in self.fault:
                    return
                self._ends.wait(0.005)
            except StrettoError as e:
                self.fault = str(e)
                return

    def _check(self, version):
        for name, array in self.policy.tensors.items():
            if not (array == stamp(version.counter, self.period)).all():
                self.torn.append([str(version), name, np.unique(array).tolist()])
        self.steps += 1
        if not self.seen or self.seen[-1] != version.counter:
            self.seen.append(version.counter)

    def report(self):
        return {
            "torn": self.torn, "seen": self.seen, "steps": self.steps,
            "fault": self.fault, "lacks": str(self.policy.fault),
            "updates": self.updates,
        }  # fmt: skip

    def adopt(self, epoch):
        self.policy.adopt(epoch)


def tell(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main():
    said = json.loads(sys.argv[1])
    pulling._LEAST_PIECE = 8 << 10  # else such small tensors are one piece
    listen = "127.0.0.1:0" if said.get("far") else None
    secret = bytes.fromhex(said["secret"])
    with Engine(said["name"], listen=listen, secret=secret) as engine:
        role = (Trainer if said["replica"] == "" else Rank)(engine, said)
        tell(engine.address or engine.name)
        for line in sys.stdin:
            asked = json.loads(line)
            do = asked.pop("do")
            try:
                if do == "connect":
                    for where in asked["to"]:
                        engine.connect(where).wait(20)
                    answer = None
                elif do == "die":
                    answer = die_at(**asked)
                elif do == "live":
                    answer = live()
                else:
                    answer = getattr(role, do)(**asked)
            except StrettoError as e:
                answer = {"error": f"{type(e).__name__}: {e}"}
            tell(answer)


assert LAYERS * SHAPE[0], "there are tensors"
if __name__ == "__main__":
    main()
