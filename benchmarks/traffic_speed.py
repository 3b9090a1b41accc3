"""How fast the engines of traffic are: events a second of one core's time, each alone.

python benchmarks/traffic_speed.py
"""

import math
import random
import time

from stretto import network, topology
from stretto.network import Cluster, jobs
from stretto.topology.traffic import Flows, Packets, Parcel

TRANSFERS = 4000
GAPS_US = {"torus8x8": 6.0, "dgx_h100x4": 60.0, "leaf_spine6x4": 60.0, "clos8x8": 8.0}
CROWDS_US = (  # the last: all at once
    ("torus8x8", 3.0), ("torus8x8", 1.0), ("leaf_spine6x4", 3.0), ("clos8x8", 1.0),
    ("torus8x8", 0.001),
)  # fmt: skip


def flows(name: str, gap_us: float) -> tuple[float, float]:
    """Return flow events a second for random transfers, and how many at once."""
    machine, draw, at = topology.load(name), random.Random(1), 0.0
    rate = machine.links[0].bandwidth_gbytes_per_s * 1e3
    traffic: Flows[int] = Flows(machine, compiled=True)
    parcels = []
    for i in range(TRANSFERS):
        src, dst = draw.sample(range(machine.num_ranks), 2)
        at += draw.expovariate(1 / gap_us)
        size = draw.uniform(50, 200) * rate
        parcels.append((Parcel(i, machine.route(src, dst), size), at))
    began, left = time.process_time(), []
    for i, (parcel, ready) in enumerate(parcels):
        traffic.send(parcel, ready_us=ready, queue=i)
    while traffic.next_us() < math.inf:
        left += traffic.step()
    took = time.process_time() - began
    inside = sum(d.left_us - parcels[d.what][1] for d in left)
    return 2 * TRANSFERS / took, inside / traffic.now_us


def packets(name: str) -> float:
    """Return packet events a second for seven hosts that send 20 MB each to one."""
    machine = topology.load("clos1x8")
    traffic: Packets[int] = Packets(machine, network.find(name))
    for i in range(7):
        parcel = Parcel(i, machine.route(i + 1, 0), 2e7)
        traffic.send(parcel, ready_us=0.0, queue=i)
    began = time.process_time()
    while traffic.next_us() < math.inf:
        traffic.step()
    return traffic.num_events / (time.process_time() - began)


def exchange() -> tuple[float, float]:
    """Return CPU seconds of 10 ms of all_to_all among 64 hosts, and events a second."""
    machine = topology.load("clos8x8")
    traffic: Packets[int] = Packets(machine, network.find("pfc"))
    for src in range(64):
        for k in range(1, 64):
            parcel = Parcel(src, machine.route(src, (src + k) % 64), 2e6)
            traffic.send(parcel, ready_us=0.0, queue=(src, k))
    began = time.process_time()
    traffic.run_until(10_000.0)
    took = time.process_time() - began
    return took, traffic.num_events / took


def day() -> tuple[float, int, int]:
    """Return CPU seconds of 24 servers and 50 jobs, and their iterations."""
    made = jobs.generate(servers=24, load=1.0, hours=0.6, seed=1, mean_s=60)[:50]
    where = Cluster("leaf_spine6x4")
    began = time.process_time()
    run = where.run(made, scheduler="random")
    return time.process_time() - began, len(made), len(run.slowdowns)


def main() -> None:
    """Print one line a case, the best of three."""
    for name, gap_us in GAPS_US.items():
        rate, inside = max(flows(name, gap_us) for _ in range(3))
        print(f"flow   {name:14} {rate:10,.0f} events/s, {inside:.0f} flows at once")
    for name, gap_us in CROWDS_US:
        rate, inside = max(flows(name, gap_us) for _ in range(3))
        print(f"flow   {name:14} {rate:10,.0f} events/s, {inside:,.0f} flows at once")
    for name in ("pfc", "dcqcn", "hpcc"):
        rate = max(packets(name) for _ in range(3))
        print(f"packet {name:14} {rate:10,.0f} events/s")
    took, rate = exchange()
    print(f"64 hosts, 10 ms of all_to_all: {took:.1f} s, {rate:,.0f} events/s")
    took, many, iterations = day()
    print(f"24 servers, {many} jobs, {iterations:,} iterations: {took:.1f} s")


if __name__ == "__main__":
    main()
