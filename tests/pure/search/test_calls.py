"""Call graphs: constraints are kept by construction, marginals are those of a trace."""

import random
from collections import Counter

import pytest
from tests.nightly import at_night

from stretto.errors import StrettoError
from stretto.search import CallGrammar, evolve, problem, read_calls
from stretto.search.calls import depths
from stretto.search.problems.traces import distances


def planted(rng):
    """Return a graph: what a kind calls, and how long, depends on it and its depth."""
    calls, at = [(-1, "front", rng.gauss(900, 90), 0)], 0
    while at < len(calls):
        _, kind, _, depth = calls[at]
        some = {
            "front": (1, 2, 3),
            "logic": (0, 1, 2),
            "store": (0, 0, 1),
            "cache": (0,),
        }
        for _ in range(rng.choice(some.get(kind, (0,))) if depth < 5 else 0):
            other = rng.choice(("logic", "store") if depth < 2 else ("store", "cache"))
            us = {"logic": 300, "store": 80, "cache": 5}[other] * rng.lognormvariate(
                0, 0.3
            )
            calls.append((at, other, us, depth + 1))
        at += 1
    return calls


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Write a trace of 1,200 graphs, its rows in no order."""
    rng, rows = random.Random(7), []
    for g in range(1200):
        for i, (parent, kind, us, _) in enumerate(planted(rng)):
            above = f"s{parent}" if parent >= 0 else ""
            rows.append(f"t{g},s{i},{above},{kind},{max(1, us):.1f}")
    rng.shuffle(rows)
    path = tmp_path_factory.mktemp("calls") / "calls.csv"
    path.write_text("trace,span,parent,kind,us\n" + "\n".join(rows) + "\n")
    return str(path)


@pytest.mark.parametrize("many", [300, at_night(10_000)])
def test_constraints_are_kept_always(trace, many):
    """Edges, depth and time."""
    grammar, rng = CallGrammar.fit(read_calls(trace)), random.Random(2)
    for _ in range(many):
        edges = rng.choice((0, 1, 2, 5, 17, 40))
        depth = rng.randint(1, edges) if edges else 0
        most = rng.choice((1.0, 50.0, 900.0))
        which = rng.randrange(4)
        given = [
            {"edges": edges},
            {"edges": edges, "depth": depth},
            {"depth": depth},
            {"edges": edges, "depth": depth, "at_most_us": most},
        ][which]
        graph = grammar.graph(rng, **given)

        assert all(-1 <= call.parent < i for i, call in enumerate(graph))
        assert [-1] == [call.parent for call in graph if call.parent < 0]
        assert len(graph) - 1 == given.get("edges", len(graph) - 1)
        assert max(depths(graph)) == given.get("depth", max(depths(graph)))
        assert max(call.us for call in graph) <= given.get("at_most_us", 1e9)


@pytest.mark.slow
def test_what_is_found_has_the_marginals_of_the_half_that_was_held_out(trace):
    """Within 0.05 of what two halves of it are apart by chance."""
    graphs = read_calls(trace)
    chance = max(distances(graphs[:600], graphs[600:]).values())
    found = evolve(problem("traces", trace=trace, drawn=300), evals=12, seed=1)

    assert found.held_out["largest"] < chance + 0.05
    assert found.held_out["largest"] <= found.first["largest"]
    assert {"edges", "depth", "calls", "us of store"} <= found.held_out.keys()


def test_kinds_are_called_by_whom_they_were_called(trace):
    """No pair of kinds is drawn that was not traced."""
    graphs = read_calls(trace)
    pairs = {(g[c.parent].kind, c.kind) for g in graphs for c in g[1:]}
    grammar, rng = CallGrammar.fit(graphs, levels=6, few=1), random.Random(3)
    drawn = Counter(
        (graph[call.parent].kind, call.kind)
        for graph in (grammar.graph(rng) for _ in range(500))
        for call in graph[1:]
    )

    assert drawn.keys() <= pairs
    assert len(drawn) > len(pairs) // 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"edges": -1}, "edges=-1"), ({"edges": 3, "depth": 4}, "at most as deep"),
        ({"edges": 0, "depth": 1}, "both 0"), ({"at_most_us": 0}, "above 0"),
        ({"depth": 10**9}, "depth="),
    ],
)  # fmt: skip
def test_what_no_graph_keeps_is_refused(trace, given, said):
    """In a line that says what can be asked."""
    with pytest.raises(StrettoError, match=said):
        CallGrammar.fit(read_calls(trace)).graph(random.Random(1), **given)


HEAD = "trace,span,parent,kind,us\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n", "no column trace"), (HEAD, "no calls"), (HEAD + "t,1,,k,x\n", ":2:"),
        (HEAD + "t,1,,k,-1\n", ":2:"), (HEAD + "t,1,,k,nan\n", ":2:"),
        (HEAD + "t,1,,k,1\nt,1,,k,1\n", "twice"), (HEAD + "t,1,,,1\n", ":2:"),
        (HEAD + "t,1,,k,1\nt,2,,k,1\n", "2 calls without"), (HEAD + "t,1\n", ":2:"),
        (HEAD + "t,1,2,k,1\nt,2,1,k,1\n", "0 calls without"), ("\0", "calls.csv"),
        (HEAD + "t,0,,k,1\nt,1,2,k,1\nt,2,1,k,1\n", "circle"),
    ],
)  # fmt: skip
def test_what_is_no_trace_of_calls_is_refused_with_its_place(tmp_path, text, said):
    """The file, and the line or the trace."""
    (tmp_path / "calls.csv").write_text(text)
    with pytest.raises(StrettoError, match=said):
        read_calls(tmp_path / "calls.csv")
