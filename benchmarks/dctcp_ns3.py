"""DCTCP through one switch: ours beside ns-3's, throughput and mean queue.

python benchmarks/dctcp_ns3.py [--install]

ns-3 comes from Debian (`libns3-dev`); only `--install` has apt-get fetch it. Where it
is absent the report says so. 100 Gb/s, links of 1 us, marking from 300 packets on, N
senders, from the fifth millisecond to the twelfth.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from stretto import network, topology
from stretto.topology.traffic import Packets, Parcel

LIBRARIES = ("core", "network", "internet", "applications", "point-to-point")
LIBRARIES += ("traffic-control",)
BEGIN_US, END_US, EVERY_US = 5000.0, 12_000.0, 3.1


def ours(senders: int) -> tuple[float, float]:
    """Return the share of the link that was used, and the mean queue in packets."""
    machine = topology.load(f"clos1x{senders + 1}")
    traffic: Packets[int] = Packets(machine, network.find("dctcp"))
    for i in range(senders):
        parcel = Parcel(i, machine.route(i + 1, 0), 4e8)
        traffic.send(parcel, ready_us=7.0 * i, queue=i)
    traffic.run_until(BEGIN_US)
    before = sum(traffic.received(i) for i in range(senders))
    queued, at = [], BEGIN_US
    while (at := at + EVERY_US) < END_US:
        traffic.run_until(at)
        queued.append(traffic.queued("leaf0->0") / 1000)
    got = sum(traffic.received(i) for i in range(senders)) - before
    return got / (traffic.now_us - BEGIN_US) / 12_500, sum(queued) / len(queued)


def built(folder: Path) -> Path | None:
    """Return ns-3's side, compiled; None where there is no ns-3."""
    source, program = Path(__file__).with_suffix(".cc"), folder / "dctcp_ns3"
    words = ["g++", "-O2", "-o", str(program), str(source)]
    words += [f"-lns3-{name}" for name in LIBRARIES]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    return program if made.returncode == 0 else None


def main() -> None:
    """Print one line for each number of senders."""
    if "--install" in sys.argv:
        words = ["apt-get", "install", "-y", "--no-install-recommends", "libns3-dev"]
        subprocess.run(words, check=False)
    with tempfile.TemporaryDirectory() as name:
        program = built(Path(name))
        if program is None:
            print("ns-3 is not here: ours alone (--install fetches it)")
        print("senders   used: ours    ns-3   queue: ours    ns-3   ours/ns-3")
        for senders in (2, 8, 32):
            used, queue = ours(senders)
            line = f"{senders:7}   {used:10.4f}"
            if program is None:
                print(f"{line}           {queue:11.1f}")
                continue
            words = [str(program), f"--senders={senders}", f"--seconds={END_US / 1e6}"]
            told = subprocess.run(words, capture_output=True, text=True, check=True)
            theirs = [float(word) for word in told.stdout.split()]
            line += f" {theirs[0]:7.4f}   {queue:11.1f} {theirs[1]:7.1f}"
            print(f"{line} {queue / theirs[1]:11.3f}", flush=True)


if __name__ == "__main__":
    main()
