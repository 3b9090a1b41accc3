"""Read the certificate of a lower bound again: nothing of synthesis is asked.

A certificate says which links must carry how much, and why; here is worked out, in
fractions, how long each can carry anything of it, and whether that is too short for
less than the claimed time. The model: a transfer goes from rank to rank over switches,
occupies each link on its way for bytes/rate from one start, and arrives after the
slowest link and all latencies; ranks send on what is complete.
"""

import heapq
from fractions import Fraction


class RefusedError(Exception):
    """A certificate does not prove the claim."""


def want(held, why):
    """Refuse what does not hold."""
    if not held:
        raise RefusedError(why)


def check(problem, proof, claim):
    """Raise unless the proof shows that nothing ends before the claim, in us."""
    case = Case(problem)
    if proof["kind"] == "distance":
        case.wanted([proof["from"]], [proof["to"]])
        far = case.away({proof["from"]: 0})[proof["to"]]
        want(claim <= far, "the way is shorter")
        return
    need, windows = KINDS[proof["kind"]](case, proof)
    room = sum(rate * max(Fraction(0), claim - late) for rate, late in windows)
    want(room * 1000 <= need * problem["nbytes"] > 0, "all of it fits into less time")


class Case:
    """A collective on a network: links are (src, dst, GB/s, us), ranks come first."""

    def __init__(self, problem):
        self.collective, self.root = problem["collective"], problem["root"]
        self.ranks, self.members = range(problem["ranks"]), problem["members"]
        self.links = [
            (u, v, Fraction(r), Fraction(a)) for u, v, r, a in problem["links"]
        ]
        parts = zip(self.members, problem["units"], strict=True)
        self.part = {v: Fraction(units, sum(problem["units"])) for v, units in parts}

    def away(self, start, *, back=False, inside=None, hop=False, price=None):
        """Return least sums of latencies, or prices; a `hop` is over switches."""
        nexts, found = {}, {}
        for e, (u, v, _, alpha) in enumerate(self.links):
            if inside is None or (u in inside and v in inside):
                way = (price[e] if price else alpha), (u if back else v)
                nexts.setdefault(v if back else u, []).append(way)
        heap = [(far, node) for node, far in start.items()]
        heapq.heapify(heap)
        while heap:
            far, node = heapq.heappop(heap)
            if node not in found:
                found[node] = far
                if not hop or node in start or node not in self.ranks:
                    for more, to in nexts.get(node, ()):
                        heapq.heappush(heap, (far + more, to))
        return found

    def wanted(self, sources, targets):
        """Return what must come from some members to others, of every byte."""
        named = [*sources, *targets]
        want(sources and targets and {*named} <= {*self.members}, "no members")
        want(len({*named}) == len(named), "one is named twice")
        rooted = dict.fromkeys(("broadcast", "scatter"), sources)
        rooted |= dict.fromkeys(("reduce", "gather"), targets)
        one = rooted.get(self.collective, [self.root])
        want(one == [self.root], "the root is another")
        held, asked = (sum(self.part[v] for v in some) for some in (sources, targets))
        shares = {"all_gather": held, "gather": held, "reduce_scatter": asked}
        shares |= {"scatter": asked, "all_to_all": len(sources) * asked}
        return shares.get(self.collective, Fraction(1))

    def between(self, sources, targets, inside=None):
        """Return when ranks can send what some have, and what is left to others."""
        have, hear = dict.fromkeys(sources, 0), dict.fromkeys(targets, 0)
        return self.away(have, inside=inside), self.away(hear, back=True)

    def closed(self, first, last, inside=None):
        """Return what links are closed for: ranks send, and have heard, by these."""
        start, before, after, late = {}, {}, {}, {}
        for s in (v for v in first if v in self.ranks):
            for node, far in self.away({s: 0}, inside=inside, hop=True).items():
                if node not in self.ranks or node == s:
                    start[node] = min(first[s], start.get(node, first[s]))
                    before[node] = min(far, before.get(node, far))
        for d in (v for v in last if v in self.ranks):
            for node, far in self.away({d: last[d]}, back=True, hop=True).items():
                if node not in self.ranks or node == d:
                    after[node] = min(far, after.get(node, far))
        for e, (u, v, _, alpha) in enumerate(self.links):
            crosses = inside is None or (u in inside and v not in inside)
            if crosses and u in start and v in after:
                late[e] = start[u] + before[u] + alpha + after[v]
        return late

    def passed(self, ranks, *, back=False):
        """Return least sums of latencies from another of some ranks, or to it."""
        away = [(u, self.away({u: 0}, back=back)) for u in ranks]
        near = {v: [t[v] for u, t in away if v in t and u != v] for v in self.ranks}
        return {v: min(some) for v, some in near.items() if some}

    def priced(self, prices):
        """Return what links carry when a byte counts its price on each."""
        want(len(prices) == len(self.links) and min(prices) >= 0, "prices are amiss")
        late = self.closed(*self.between(self.members, self.members))
        return [(self.links[e][2] * prices[e], late[e]) for e in late if prices[e]]


def lengths(case, proof):
    """All that is sent pays the length of its way."""
    want(case.collective == "all_to_all", "data may be copied")
    length, need = [Fraction(x) for x in proof["lengths"]], Fraction(0)
    least = Fraction(proof["least"])
    for s in case.members:
        late, away = case.away({s: 0}), case.away({s: Fraction(0)}, price=length)
        far = [t for t in case.members if t != s and late[t] >= least]
        need += sum(away[t] * case.part[t] for t in far)
    return need, [(rate, max(t, least)) for rate, t in case.priced(length)]


def prices(case, proof):
    """A tree leads to whoever has the sum first, and then a way to everybody else."""
    price, places = proof["prices"], proof["clusters"] or list(case.ranks)
    windows, node = case.priced(price), dict(enumerate(places))
    want(node.keys() == {*case.ranks} and {*places} <= {*case.ranks}, "no clusters")
    # ranks that share all they know are one
    case.links = [(node.get(u, u), node.get(v, v), *k) for u, v, *k in case.links]
    want(case.collective == "all_reduce", "it is about sums that all get")
    if proof["backward"]:
        case.links = [(v, u, *rest) for u, v, *rest in case.links]
    ranks, worth = sorted({*places}), []
    hops = {u: case.away({u: Fraction(0)}, hop=True, price=price) for u in ranks}
    into = {v: min(hops[u][v] for u in ranks if u != v and v in hops[u]) for v in ranks}
    out = {u: min(hops[u][v] for v in hops[u] if v in ranks and v != u) for u in ranks}
    for nth, root in enumerate(ranks):
        others = {node[v] for v in case.members} - {root}
        tree = max(sum(out[v] for v in others), into[root])
        if sets := proof["trees"].get(str(nth)):
            sets = [(Fraction(value), {ranks[v] for v in some}) for value, some in sets]
            for value, some in sets:
                want(value >= 0 and root not in some and some & others, "no such set")
            for u, v in ((u, v) for u in ranks for v in ranks if v in hops[u]):
                paid = sum(x for x, some in sets if u in some and v not in some)
                want(paid <= hops[u][v], "sets cost more than a hop")
            tree = sum(value for value, _ in sets)
        worth.append(tree + sum(into[v] for v in others))
    return min(worth), windows


def crossing(case, proof):
    """All of some leaves a set, over its edge: straight, or some by way of others.

    Of what crosses m times or once, later, the latter is at most what fits then. What
    is of one source to all, or of all to one target, has a time of its own.
    """
    inside, sources, targets = {*proof["nodes"]}, proof["from"], proof["to"]
    need = case.wanted(sources, targets)
    want({*sources} <= inside and not {*targets} & inside, "it need not leave the set")
    (first, last), counts = case.between(sources, targets, inside), []
    start, end = case.between(sources, targets)
    own, hears = dict.fromkeys(sources, 0), dict.fromkeys(targets, 0)
    if proof["before"]:
        want(case.collective in SUMMED, "it is not about sums")
        if all(case.closed({u: 0}, end, inside) for u in sources):
            counts.append(len(sources))
        first = case.passed(sources)
    if proof["after"]:
        want(case.collective in COPIED, "nothing is copied")
        if all(case.closed(start, {w: 0}, inside) for w in targets):
            counts.append(len(targets))
        last = case.passed(targets, back=True)
    far = case.closed(first, last, inside)
    shares, rates = [(1, far)], [rate for _, _, rate, _ in case.links]
    if counts:
        part, cell = Fraction(1, min(counts)), Fraction(1, counts[0] * counts[-1])
        into = start if proof["after"] or not proof["before"] else own
        onto = end if proof["before"] or not proof["after"] else hears
        near = case.closed(into, onto, inside)
        near = {e: min(t[e] for t in (near, far) if e in t) for e in {*near, *far}}
        shares = [(1 - part, far), (part, near)]
    if proof["apart"]:
        want(len(counts) == 2 and part < 1, "not many can cross straight")
        shares = [(1 - 2 * part + cell, far), (cell, near)]
        ends = (start, last), (first, end)
        shares += [(part - cell, case.closed(*way, inside)) for way in ends]
    return need, [(rates[e] * x, t) for x, late in shares for e, t in late.items()]


SUMMED = ("all_reduce", "reduce", "reduce_scatter")
COPIED = ("all_gather", "all_reduce", "broadcast")
KINDS = {"crossing": crossing, "lengths": lengths, "prices": prices}
