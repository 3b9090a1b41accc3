"""Every bound's certificate is read again; whatever else proves nothing false.

The checker (`tests/checking/certificates.py`) knows nothing of synthesis.
"""

import ast
import copy
import itertools
import random
from fractions import Fraction
from pathlib import Path

import pytest
from tests.checking import certificates
from tests.checking.certificates import RefusedError, check
from tests.nightly import nightly
from tests.pure.synth.test_bounds_hold import Climb, machine

from stretto import topology
from stretto.errors import TopologyError
from stretto.synth import COLLECTIVES, ROOTED, Network, bound, from_machine
from stretto.synth.network.model import NetworkLink

AMISS = (
    RefusedError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
)
"""What the checker says of certificates, and of what is none."""
SIZES = (1, 65536, 10**6)


def problem(network, collective, nbytes, root=0, units=()):
    """Return what the checker is told beside the certificate."""
    return {
        "collective": collective,
        "nbytes": nbytes,
        "ranks": network.num_ranks,
        "members": network.members,
        "root": root,
        "units": units or [1] * len(network.members),
        "links": [(k.src, k.dst, k.rate, k.alpha) for k in network.links],
    }


def read_again(network, collective, **more):
    """Check every term of a bound for some sizes; return how many kinds there are."""
    limit, kinds = bound(collective, network, **more), set()
    units = more.get("weights")
    for nbytes in SIZES:
        asked = problem(network, collective, nbytes, more.get("root", 0), units)
        for term in limit.terms:
            us = term.us(nbytes)
            check(asked, term.proof, us)
            if term.proof["kind"] != "prices":  # which may prove more than they say
                with pytest.raises(RefusedError):
                    check(asked, term.proof, us + Fraction(1, 10**6))
            kinds.add(term.proof["kind"])
        file = limit.certificate(nbytes)
        check(file, file["proof"], Fraction(file["us"]))
        assert Fraction(file["us"]) == limit.us(nbytes)
    return kinds


def test_the_checker_can_be_read_and_knows_nothing_of_synthesis():
    """At most 150 lines beside what they say of themselves, and of Python alone."""
    text = Path(certificates.__file__).read_text(encoding="utf-8")
    said = [ast.get_docstring(n, clean=False) for n in ast.walk(ast.parse(text))
            if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]  # fmt: skip
    for words in filter(None, said):
        text = text.replace(f'"""{words}"""', "")
    lines = [x for x in text.splitlines() if x.strip()]

    assert len(lines) <= 150
    assert not [x for x in lines if "import" in x and "stretto" in x]


@pytest.mark.parametrize(
    ("name", "collective"),
    nightly(
        itertools.product(
            ["dgx1", "h200x8", "ndv2x2", "torus4x4", "dgx_h100x2"], COLLECTIVES
        ),
        7,
    ),
)
def test_bounds_of_known_machines_are_read_again(name, collective):
    """All terms, whichever decides."""
    network = from_machine(topology.load(name))

    assert "distance" in read_again(network, collective)


@pytest.mark.parametrize("collective", nightly(COLLECTIVES, 3))
def test_bounds_of_some_ranks_and_of_unequal_parts_are_read_again(collective):
    """Relays, other roots, parts of other sizes."""
    whole = from_machine(topology.load("ndv2x2"))
    group = whole.group([2, 3, 5, 8, 9], relays=True)
    rooted = {"root": 5} if collective in ROOTED else {}
    weights = {} if collective == "all_reduce" else {"weights": (5, 1, 1, 2, 1)}

    read_again(group, collective, **rooted)
    read_again(group, collective, **rooted, **weights)


@pytest.mark.parametrize("seed", nightly(range(200), 50))
def test_bounds_of_drawn_machines_are_read_again(seed):
    """Ports, relays, and latencies that differ much."""
    network = machine(random.Random(seed))
    kinds = set.union(*(read_again(network, c) for c in COLLECTIVES))

    assert kinds >= {"distance", "crossing", "lengths", "prices"}


def one_way(chance):
    """Return ranks in a ring, switches with few links, most of them one way only.

    Into some switches nothing leads, and out of some nothing does.
    """
    n = chance.choice((2, 3, 3, 4))
    nodes = n + chance.choice((1, 1, 2))
    ends = {(v, (v + 1) % n) for v in range(n)} if chance.random() < 0.8 else set()
    pairs = itertools.permutations(range(nodes), 2)
    ends |= {pair for pair in pairs if chance.random() < 0.3}
    links = [
        NetworkLink(
            src=u, dst=v, rate=Fraction(chance.choice((1, 2, 100))),
            alpha=Fraction(chance.choice((0, 0, 1, 7))),
        )
        for u, v in sorted(ends)
    ]  # fmt: skip
    return Network(
        name="one_way", num_ranks=n, num_nodes=nodes, links=tuple(links),
        box=(0,) * n, members=tuple(range(n)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", nightly(range(12), 4))
def test_bounds_of_networks_with_ends_that_nothing_passes_are_read_again(seed):
    """A link that nothing can come to, or go on from, is no way, and no crash."""
    chance, read = random.Random(seed), 0
    for network, collective in itertools.product(
        [one_way(chance) for _ in range(20)], COLLECTIVES
    ):
        try:
            terms = bound(collective, network).terms
        except TopologyError as e:
            assert "want a chain of links" in str(e)  # noqa: PT017  (or none)
            continue
        for nbytes, term in itertools.product(SIZES, terms):
            asked = problem(network, collective, nbytes)
            check(asked, term.proof, term.us(nbytes))
            read += 1

    assert read > 20


def mutated(chance, proof):
    """Return a certificate with something else somewhere."""
    proof = copy.deepcopy(dict(proof))
    name = chance.choice([k for k in proof if k != "kind"])
    value = proof[name]
    if name == "trees" and value:
        value = value[chance.choice(list(value))]
    if isinstance(value, list | tuple) and value:
        value = list(value)
        at = chance.randrange(len(value))
        if chance.random() < 0.3:
            value.append(value[at])
        elif chance.random() < 0.3:
            del value[at]
        elif isinstance(value[at], list | tuple):  # a set and its value
            sets = (value[at][0] * 2 + 1, value[at][1])
            value[at] = chance.choice([sets, (value[at][0], value[at][1][:-1])])
        else:
            known = Fraction(value[at]) if isinstance(value[at], str) else value[at]
            value[at] = chance.choice([known + 1, known * 2, 0, -1])
        proof[name] = value
    elif isinstance(value, bool):
        proof[name] = not value
    elif isinstance(value, int):
        proof[name] = value + chance.choice((-1, 1))
    else:
        proof[name] = chance.choice([None, {}, [0]])
    return proof


@pytest.mark.parametrize("seed", nightly(range(120), 40))
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_no_mutated_certificate_proves_more_than_is_done(collective, seed):
    """A checker that took one would call a right program impossible."""
    chance = random.Random(seed)
    network = machine(chance)
    nbytes = chance.choice((10**4, 3 * 10**5))
    done = Climb(chance, collective, network, nbytes, 2).climb(100)
    asked = problem(network, collective, nbytes)
    for term in bound(collective, network).terms:
        check(asked, term.proof, term.us(nbytes))
        for _ in range(8):
            with pytest.raises(AMISS):
                check(asked, mutated(chance, term.proof), done * Fraction(1001, 1000))


def test_hops_count_apart_where_there_are_several_on_both_sides():
    """With one source a hop in front is of all there is: nothing follows from it."""
    links = [(u, v, Fraction(1), Fraction(1))
             for u, v in itertools.permutations(range(3), 2)]  # fmt: skip
    asked = {"collective": "all_reduce", "nbytes": 1000, "ranks": 3, "root": 0,
             "members": (0, 1, 2), "units": [1, 1, 1], "links": links}  # fmt: skip
    proof = {"kind": "crossing", "nodes": [0], "from": [0], "to": [1, 2],
             "before": True, "after": True, "apart": True}  # fmt: skip

    with pytest.raises(RefusedError, match="not many can cross"):
        check(asked, proof, Fraction(1))
