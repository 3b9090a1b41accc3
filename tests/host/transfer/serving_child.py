"""Instances that tests start, here and in other processes, and what they are asked."""

import json
import os
import random
import select
import subprocess
import time
import uuid

from tests.host import warm
from tests.host.transfer.conftest import ROOT
from tests.host.transfer.serving import Instance

DECODES = {"do_remote_decode": True}


class Child:
    """Prefill in a process of its own."""

    def __init__(self, **how):
        self.name = f"p{uuid.uuid4().hex[:8]}"
        self.process = warm.Popen(
            ["-m", "tests.host.transfer.serving", self.name, json.dumps(how)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        self.told, self._rest = {}, b""
        while self._heard(10) != ["ready"]:
            pass

    def say(self, **what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def add(self, name, tokens, params):
        self.say(name=name, tokens=list(tokens), params=params)

    def abort(self, *names):
        self.say(abort=names)

    def _heard(self, seconds):
        """Return what it has said meanwhile."""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return []
        got = os.read(self.process.stdout.fileno(), 1 << 20)
        *lines, self._rest = (self._rest + got).split(b"\n")
        return [json.loads(line) for line in lines]

    def step(self, seconds=0.0):
        """Take what it says: it steps on its own. Return what it was asked for."""
        answers = []
        for said in self._heard(seconds):
            assert "error" not in said, said
            if "free" in said:
                answers.append(said)
            else:
                self.told[said["name"]] = said["params"]
        return answers

    def counts(self):
        """Return what is free there, what requests it has, and its figures."""
        self.say(free=True)
        while not (answers := self.step(1.0)):
            assert self.process.poll() is None
        return answers[0]

    def close(self):
        self.process.kill()
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


def starting():
    """Yield what starts instances, here or in a process, and end them."""
    some = []

    def make(kind=Instance, **how):
        name = () if kind is Child else (f"i{uuid.uuid4().hex[:8]}",)
        some.append(kind(*name, **how))
        return some[-1]

    yield make
    for made in some:
        made.close()


def until(what, *steps, seconds=90):
    """Step until something is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not in time"
        for step in steps:
            step()


def prompts(count, seed=0, most=40):
    rng = random.Random(seed)
    return {
        f"r{n}": [rng.randrange(9000) for _ in range(rng.randrange(1, most))]
        for n in range(count)
    }


def serve(prefill, decode, asked, *, mood=None, outputs=3):
    """Have requests computed by one and gone on with by the other; return these."""
    made, left = {}, set(asked)
    for name, tokens in asked.items():
        prefill.add(name, tokens, dict(DECODES))

    def go_on():
        prefill.step()
        decode.step()
        for name, params in list(prefill.told.items()):
            del prefill.told[name]
            left.discard(name)
            if params is not None:
                made[name] = decode.add(f"at {name}", asked[name], params, outputs)
        if mood is not None:
            mood()

    until(lambda: not left and not decode.has_requests(), go_on)
    assert not any(request.wrong for request in made.values())
    return made


def all_free(prefill):
    if isinstance(prefill, Child):
        return not prefill.counts()["requests"]
    return not prefill.has_requests()
