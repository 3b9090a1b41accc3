"""Engines in this process and in others, ended with the test."""

import json
import os
import subprocess
import uuid
from pathlib import Path

import pytest
from tests.host import warm
from tests.host.transfer.carriers import CARRIERS

from stretto.fabric import hop as hops
from stretto.transfer import Engine

SECRET = b"s" * 32
ROOT = Path(__file__).resolve().parents[3]
os.environ.setdefault("UCX_TLS", "tcp,self")  # for meaning, not for speed


class Child:
    """An engine in a process of its own."""

    def __init__(self, name, *, listen, environment=None, **how):
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        env = {**os.environ, "PYTHONPATH": paths, **(environment or {})}
        self.name = name
        self.process = warm.Popen(
            ["-m", "tests.host.transfer.child", name, SECRET.hex(), int(listen),
             json.dumps(how)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT,
        )  # fmt: skip
        self.address = json.loads(self.process.stdout.readline())

    def tell(self, do, **said):
        self.process.stdin.write(json.dumps({"do": do, **said}) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, do, **said):
        self.tell(do, **said)
        answer = self.hear()
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def end(self):
        self.process.kill()
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


def _starting():
    """Yield what starts an engine in another process, and end all that it started."""
    children = []

    def make(*, listen=False, environment=None, **how):
        name = f"there-{uuid.uuid4().hex[:8]}"
        children.append(Child(name, listen=listen, environment=environment, **how))
        return children[-1]

    yield make
    for child in children:
        child.end()


def _engine():
    """Yield an engine of this process."""
    with Engine(f"here-{uuid.uuid4().hex[:8]}", secret=SECRET) as made:
        yield made


start = pytest.fixture(_starting, name="start")
starts = pytest.fixture(_starting, scope="module", name="starts")
engine = pytest.fixture(_engine, name="engine")
our_engine = pytest.fixture(_engine, scope="module", name="our_engine")


@pytest.fixture(name="over", scope="module")
def _over(our_engine):
    """Return what gives an engine of ours that uses a carrier, where that is here."""
    others = {}

    def over(path):
        if path not in CARRIERS or path == our_engine.hop:
            return our_engine
        if why := hops.get(path).missing():
            pytest.skip(why)
        if path not in others:
            name = f"here-{uuid.uuid4().hex[:8]}"
            others[path] = Engine(name, secret=SECRET, hop=path)
        return others[path]

    yield over
    for made in others.values():
        made.close()
