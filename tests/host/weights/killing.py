"""Kill ranks at every phase, and look whether anybody reads what is torn.

    python -m tests.host.weights.killing 200 [SEED]

There are a trainer of two ranks and two replicas, of two ranks and of one. In each
round somebody kills itself at some phase. The others go on: a replica whose ranks live
steps with new versions while there is a trainer, and with its last one while there is
none. Then whoever died is started anew, and everybody comes to the newest version.
"""

import itertools
import random
import sys
import time

from tests.host.weights.team import Scene

__all__ = ["CASES", "CHANGED", "HANDED_ON", "SCENES", "begin", "kill", "round_of"]

TRAINER = ("writing", "making", "offering", "granting")
REPLICA = ("planning", "reading", "reporting", "switching", "stepping")
CASES = [
    *(("trainer", phase) for phase in TRAINER),
    *(("replica", phase) for phase in REPLICA),
    *(("forwarder", phase) for phase in REPLICA),
]
HANDED_ON = [
    ("trainer", "granting"),
    *(("either", phase) for phase in ("granting", "handing on", "following")),
    *((who, phase) for who in ("replica", "forwarder") for phase in REPLICA[1:4]),
]
"""While versions are handed on as they come, by one of the two, whoever is first."""
CHANGED = [
    *(("trainer", phase) for phase in ("keeping", "granting")),
    *(("replica", phase) for phase in ("updating", "changing", "switching")),
    ("forwarder", "changing"),
]
"""While replicas read nothing but what has changed."""
SCENES = (
    ({"far": False}, CASES),
    ({"far": True, "fan": 1}, HANDED_ON),
    ({"far": True}, CASES),
    ({"far": True, "fan": 1}, HANDED_ON),
    ({"far": True, "period": 8}, CHANGED),
    ({"far": False, "period": 8, "copies": 1}, CHANGED),
)
MOST_S = 40.0


def begin(scene):
    """Start all of them."""
    scene.train(2)
    scene.serve("pair", 2)
    scene.serve("solo", 1)
    assert scene.push()
    for name in ("pair", "solo"):
        scene.wait_for(name, scene.counter)


def round_of(scene, who, phase, nth):
    """Let one die, and see that all others go on; raise when they do not."""
    pair, solo = scene.replicas["pair"], scene.replicas["solo"]
    armed = {
        "trainer": [scene.trainers[-1]], "replica": [pair[-1]], "forwarder": [solo[-1]],
        "either": [pair[-1], solo[-1]],
    }[who]  # fmt: skip
    for one in armed:
        one.ask("die", phase=phase, nth=nth)
    until = time.monotonic() + MOST_S
    while not any(one.is_dead for one in armed):
        assert time.monotonic() < until, f"{who} does not come to {phase}"
        scene.push()
        for name in ("pair", "solo"):
            scene.reports(name)
    for one in armed:
        if not one.ask("live"):  # it dies at this very moment
            one.process.wait(10)
    if who == "trainer":
        _without_trainer(scene)
    else:
        gone = [
            name
            for name, ranks in scene.replicas.items()
            if any(one.is_dead for one in ranks)
        ]
        assert scene.push()
        for name in {*scene.replicas} - {*gone}:
            scene.wait_for(name, scene.counter)  # it stops nobody else
        sizes = {name: len(scene.replicas[name]) for name in gone}
        for name in gone:
            scene.drop(scene.replicas.pop(name))
        for name, of in sizes.items():
            scene.serve(name, of)
            scene.wait_for(name, scene.counter)  # from anyone who has it
    assert scene.push()
    for name in ("pair", "solo"):
        scene.wait_for(name, scene.counter)


def _without_trainer(scene):
    """See that replicas go on with what they have, and start a trainer."""

    def steps():
        return [scene.reports(name)[0]["steps"] for name in ("pair", "solo")]

    scene.drop(scene.trainers)
    before = steps()
    until = time.monotonic() + MOST_S
    while not all(a < b for a, b in zip(before, steps(), strict=True)):
        assert time.monotonic() < until, "replicas do not go on without a trainer"
    scene.counter += 1
    scene.train(2)


def kill(count, seed, say=None):
    """Kill so many, each phase of each kind of scene in turn."""
    chance, killed = random.Random(seed), 0
    for nth in itertools.count(seed):
        how, cases = SCENES[nth % len(SCENES)]
        some = cases[: count - killed]
        if not some:
            return
        with Scene(**how) as scene:
            begin(scene)
            for i, (who, phase) in enumerate(some, killed + 1):
                round_of(scene, who, phase, chance.choice((1, 2, 3, 5)))
                if say:
                    say(i, who, phase)
        killed += len(some)


def main():
    """Kill as many as is said."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    begun = time.monotonic()

    def say(i, who, phase):
        took = time.monotonic() - begun
        said = f"{i} of {count}: {who} at {phase}, nothing torn, {took:.0f} s"
        sys.stdout.write(said + "\n")
        sys.stdout.flush()

    kill(count, seed, say)


if __name__ == "__main__":
    main()
