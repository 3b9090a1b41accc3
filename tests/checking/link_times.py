"""How long programs take on links, worked out of the cost model's sentences alone.

A transfer occupies the links on its way from one start, each for its bytes/rate, and
arrives after the slowest of them and all latencies; a rank sends on what is complete;
links serve in the order of the program.
"""

import itertools
from fractions import Fraction
from typing import NamedTuple


class Job(NamedTuple):
    """A share of the vector from rank to rank, after other jobs of the program."""

    src: int
    dst: int
    share: Fraction
    after: tuple[int, ...]


def ways(network):
    """Return the links of the quickest way over switches between two ranks."""
    n, links = network.num_ranks, network.links
    found, leaving = {}, network.leaving()

    def walk(src, node, path, alpha):
        for e in leaving[node]:
            to, late = links[e].dst, alpha + links[e].alpha
            if to < n and to != src:
                if (src, to) not in found or late < found[src, to][1]:
                    found[src, to] = (*path, e), late
            elif to >= n and all(links[k].dst != to for k in path):
                walk(src, to, (*path, e), late)

    for src in range(n):
        walk(src, src, (), Fraction(0))
    return found


def time_of(network, nbytes, jobs, order, known=None):
    """Return when the last job arrives, if links serve the jobs in this order."""
    known = known or ways(network)
    free, arrived = [Fraction(0)] * len(network.links), {}
    for i in order:
        job = jobs[i]
        links, alpha = known[job.src, job.dst]
        start = max(
            [free[e] for e in links] + [arrived[j] for j in job.after], default=0
        )
        took = [nbytes * job.share / (network.links[e].rate * 1000) for e in links]
        for e, us in zip(links, took, strict=True):
            free[e] = start + us
        arrived[i] = start + max(took) + alpha
    return max(arrived.values())


def orders(jobs):
    """Yield every order in which nothing comes before what it needs."""
    for order in itertools.permutations(range(len(jobs))):
        place = {i: at for at, i in enumerate(order)}
        if all(place[j] < place[i] for i in order for j in jobs[i].after):
            yield order


def trees(ranks, root):
    """Yield every tree that spans some ranks, as the parent of each but the root."""
    others = [v for v in ranks if v != root]
    for parents in itertools.product(ranks, repeat=len(others)):
        tree = dict(zip(others, parents, strict=True))
        if all(_leads(tree, v, root) for v in others):
            yield tree


def _leads(tree, v, root):
    for _ in tree:
        v = tree.get(v, v)
    return v == root


def down(jobs, tree, root, share, after=(), wanted=None):
    """Add what spreads from a root, to all or on the way to some."""
    wanted = {*tree} if wanted is None else wanted
    needed = {v for w in wanted for v in _path(tree, w, root)}
    come, left = {root: tuple(after)}, [v for v in tree if v in needed]
    while left:
        v = next(v for v in left if tree[v] in come)
        left.remove(v)
        jobs.append(Job(tree[v], v, share, come[tree[v]]))
        come[v] = (len(jobs) - 1,)


def up(jobs, tree, root, share):
    """Add what is summed towards a root, and return the jobs that end there."""
    left, into = dict(tree), {v: [] for v in (root, *tree)}
    while left:
        v = next(v for v in left if v not in left.values())
        parent = left.pop(v)
        jobs.append(Job(v, parent, share, tuple(into[v])))
        into[parent].append(len(jobs) - 1)
    return tuple(into[root])


def _path(tree, v, root):
    while v != root:
        yield v
        v = tree[v]


def slots(collective, members, root):
    """Return what a program has to choose trees for: roots, and who wants them."""
    pairs = [(s, {t}) for s in members for t in members if s != t]
    if collective == "all_to_all":
        return pairs
    if collective == "scatter":
        return [(root, {t}) for t in members if t != root]
    if collective == "gather":
        return [(s, {root}) for s in members if s != root]
    if collective in ("broadcast", "reduce"):
        return [(root, None)]
    if collective == "all_reduce":
        return [(None, None)]  # wherever the sum is whole first
    return [(r, None) for r in members]


def program(collective, members, chosen):
    """Return the jobs of trees that were chosen for the slots: root, wanted, trees."""
    rooted = collective in ("broadcast", "reduce", "all_reduce")
    parts = 1 if rooted else len(members)
    counts = {}
    for slot, *_ in chosen:
        counts[slot] = counts.get(slot, 0) + 1
    jobs = []
    for slot, root, wanted, there, back in chosen:
        share = Fraction(1, parts * counts[slot])
        if collective in ("reduce", "reduce_scatter"):
            up(jobs, there, root, share)
        elif collective == "all_reduce":
            down(jobs, back, root, share, up(jobs, there, root, share))
        else:
            down(jobs, there, root, share, wanted=wanted)
    return jobs
