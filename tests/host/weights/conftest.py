"""Engines of this process that know one another, ended with the test."""

import uuid

import pytest

from stretto import weights
from stretto.transfer import Engine


class Engines:
    """Makes engines, sources and replicas, and ends them."""

    def __init__(self):
        self.made, self.job = [], uuid.uuid4().hex

    def engine(self, name, *others):
        """Return an engine that is connected with others."""
        made = Engine(f"{name}-{uuid.uuid4().hex[:6]}", job=self.job)
        self.made.append(made)
        for other in others:
            made.connect(other.name).wait(20)
        return made

    def source(self, tensors, *others, name="policy", **how):
        """Return a source by an engine of its own."""
        found = weights.publish(self.engine("trainer", *others), name, tensors, **how)
        self.made.append(found)
        return found

    def replica(self, into, *others, name="policy", **how):
        """Return a replica by an engine of its own."""
        engine = self.engine("replica", *others)
        found = weights.subscribe(engine, name, into=into, **how)
        self.made.append(found)
        return found

    def end(self):
        """End all, the last first."""
        for one in reversed(self.made):
            one.close()


@pytest.fixture
def engines():
    """Yield what makes engines."""
    found = Engines()
    yield found
    found.end()
