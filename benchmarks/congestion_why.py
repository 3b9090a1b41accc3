"""Why DCQCN and TIMELY are slow where flows collide: one thing changed at a time.

python benchmarks/congestion_why.py: two flows that meet; then times over PFC's, 4 MB.
"""

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from congestion_study import planned, run

from stretto import network, topology
from stretto.topology import Machine
from stretto.topology.traffic import Congestion, Packets, Parcel

CASES = (("rabenseifner", ""), ("rabenseifner", "_over"), ("two_shot", "_over"))
ONE_SPINE = """about = "-"\nkind = "gpu"\nnames = ["one"]\n[costs]
background_puts = true\n[leaf_spine]\nleaves = 8\nhosts = 8\nspines = 1
bandwidth_gbytes_per_s = 12.5\nlatency_us = 1\noversubscription = """
TRIED = {
    "dcqcn": (
        "", "least=1e-3", "raise_timer=5.5", "add=1e-2 hyper=1e-1",
        "add=2e-4 hyper=2e-3", "alpha_timer=1", "cnp=500", "cnp=5",
        "marks=10", "marks=0.1", "kept", "window",
        "cnp=4 alpha_timer=1 raise_timer=300 stages=1 add=2e-4 hyper=2e-3",
        "cnp=4 alpha_timer=1 raise_timer=300 stages=1 add=2e-4 hyper=2e-3 kept",
    ),
    "timely": ("", "add=1e-2", "low=250", "low=500", "cut=0.2", "window", "least=1e-3"),
    "dctcp": ("",), "pfc": ("window",),
}  # fmt: skip
# Parameters that are changed; `marks`: how much later they come than at 32 to 128 us;
# `kept`: see `target_kept`; `window`: at most a round trip's bytes are on the way.


def target_kept(state: Any, params: Any, told: Any) -> None:
    """Cut as DCQCN does; but of cuts in a row only the first sets the target."""
    if state[10] > 0.0:
        state[6] = state[0]
    state[0] = max(params[6] * state[3], state[0] * (1.0 - state[7] / 2.0))
    state[7] = (1.0 - params[0]) * state[7] + params[0]
    state[8], state[9], state[10] = told[0] + params[1], told[0] + params[2], 0.0


def tuned(name: str, changes: str) -> Congestion:
    """Return a control with something changed."""
    plain = network.find(name)
    new = {k: float(v or 1) for k, _, v in (w.partition("=") for w in changes.split())}

    def begin(state: Any, params: Any, told: Any) -> None:
        plain.begin(state, params, told)
        state[1] = state[3] * state[4] + state[5]

    some = (replace(p, value=new.get(p.name, p.value)) for p in plain.parameters)
    found = replace(plain, cnp_us=new.get("cnp", plain.cnp_us), parameters=tuple(some))
    if "marks" in new:
        found = replace(found, ecn_us=(32 * new["marks"], 128 * new["marks"], 0.2))
    if "kept" in new:
        found = replace(found, on_cnp=target_kept)
    return replace(found, begin=begin, acks=True) if "window" in new else found


def in_turn(where: Machine, nbytes: float) -> float:
    """Return what rabenseifner takes if every step waits for its fullest link."""
    total = 0.0
    for d in (1, 2, 4, 8, 16, 32):
        routes = [where.route(r, r ^ d) for r in range(64)]
        loads = Counter(where.links[k] for route in routes for k in route.links)
        full = max(many / link.bandwidth_gbytes_per_s for link, many in loads.items())
        total += 2 * (full * nbytes * d / 64e3 + max(r.latency_us for r in routes))
    return total


def meet(name: str) -> None:
    """Print what two flows of 2 MB into one port do: in all, and how much waits."""
    where, at, had, ends = topology.load("clos1x8"), 0.0, 0, []
    traffic: Packets[int] = Packets(where, network.find(name))
    for i in range(2):
        traffic.send(Parcel(i, where.route(i + 1, 0), 2 << 20), ready_us=0.0, queue=i)
    while len(ends) < 2:
        at += 100
        ends += [round(d.arrives_us) for d in traffic.run_until(at)]
        got, waits = sum(map(traffic.received, range(2))), traffic.queued("leaf0->0")
        rate, had = (got - had) / 12500, got
        print(f"{name} {at:5.0f} us: {rate:5.1f} Gb/s, {waits} bytes {ends}")


def networks(over: str) -> dict[str, Machine]:
    """Return the study's network, with one wide spine, and with other hashes."""
    hashed = topology.load(f"clos{over}8x8")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.toml"
        path.write_text(ONE_SPINE + ("2" if over else "1"))
        found = {"": hashed, ", one spine": topology.load(str(path))}
    for seed in (1, 2, 3):
        ports = replace(hashed.ports, hash_seed=seed)
        found[f", hash seed {seed}"] = replace(hashed, ports=ports)
    return found


def main() -> None:
    """Run all."""
    for name in ("pfc", "dcqcn", "timely", "dctcp"):
        meet(name)
    for name, over in CASES:
        plan = planned(f"all_reduce/{name}", 64)
        for suffix, where in networks(over).items():
            base = run(plan, where, 4, network.find("pfc"))["us"]
            turn = in_turn(where, 4 << 20)
            print(f"{name}{over}{suffix}: pfc {base:.1f} us, in turn {turn:.1f} us")
            for control, all_changes in TRIED.items():
                for changes in all_changes[: 1 if suffix else None]:
                    us = run(plan, where, 4, tuned(control, changes))["us"]
                    print(f"  {us / base:6.3f} {control} {changes}", flush=True)


if __name__ == "__main__":
    main()
