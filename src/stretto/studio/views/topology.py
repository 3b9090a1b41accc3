"""The machine, and what every link carried, over time."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.studio.analysis.layout import NodeLayout, of_machine, of_ranks
from stretto.studio.analysis.link_use import LinkUse
from stretto.studio.analysis.scene import RECORD_STEPS, Args, Scene
from stretto.studio.inputs.loading import LoadedInputs
from stretto.topology import Link

TITLE = "Links"
ORDER = 2
FULL = 200
"""A share of 1, as the page is told it: two bytes hold up to 327."""
_FEW_LINKS = 640
"""So many are shown whole, with those that carried nothing."""
_MOST_LINKS = 8192


def offered(loaded: LoadedInputs) -> bool:
    """Return whether steps or a machine are known."""
    return loaded.recording is not None


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return nodes with their places, links, and the share of each that was in use."""
    index, use, machine = scene.index, scene.links, scene.loaded.machine
    world = index.world.tolist()
    if use.is_measured and machine is not None:
        layout = of_machine(machine, world)
    else:
        layout = of_ranks(index.recording.ranks, world)
    place = {node: at for at, node in enumerate(layout.node)}
    links, nbytes, share = _shown(use, scene, layout, place)
    total = nbytes.sum(axis=1)
    return {
        "machine": machine.name if machine is not None and use.is_measured else "",
        "is_measured": use.is_measured,
        "num_ranks": len(world),
        "boxes": list(layout.boxes),
        "names": list(layout.names),
        "box": np.array(layout.box, np.int32),
        "x": np.array(layout.x, np.float32),
        "y": np.array(layout.y, np.float32),
        "is_switch": np.array(layout.is_switch, np.uint8),
        "links": [link.name for link in links],
        "src": np.array([place[link.src] for link in links], np.int32),
        "dst": np.array([place[link.dst] for link in links], np.int32),
        "gbytes_per_s": np.array([lk.bandwidth_gbytes_per_s for lk in links], "f4"),
        "total_nbytes": total.astype(np.float64),
        "share": np.clip(np.rint(share * FULL), 0, 65535).astype(np.uint16),
        "bins": use.nbytes.shape[1],
        "bin_us": use.bin_us,
        "peak_gbytes_per_s": _peak(use),
        "notes": _notes(scene, use, len(links)),
    }


def _shown(
    use: LinkUse, scene: Scene, layout: NodeLayout, place: dict[int, int]
) -> tuple[list[Link], Any, Any]:
    """Return the links with both ends in the picture, the busiest first."""
    order = np.argsort(-use.nbytes.sum(axis=1), kind="stable")
    kept = [
        int(i) for i in order if use.links[i].src in place and use.links[i].dst in place
    ][:_MOST_LINKS]
    links = [use.links[i] for i in kept]
    nbytes, share = use.nbytes[kept], use.share[kept]
    machine = scene.loaded.machine
    if use.is_measured and machine is not None and len(machine.links) <= _FEW_LINKS:
        used = {link.name for link in links}
        idle = [
            link
            for link in machine.links
            if link.name not in used and link.src in place and link.dst in place
        ]
        none = np.zeros((len(idle), nbytes.shape[1]))
        links = [*links, *idle]
        nbytes, share = np.concatenate([nbytes, none]), np.concatenate([share, none])
    return links, nbytes, share


def _peak(use: LinkUse) -> float:
    """Return the rate of a share of 1 where links' own rates are not known."""
    return float(use.nbytes.max(initial=0.0)) / use.bin_us / 1e3


def _notes(scene: Scene, use: LinkUse, shown: int) -> list[str]:
    notes = []
    found = scene.traffic
    if not len(scene.index.steps):
        notes.append(
            "No steps were recorded, so what went over which link is not known. "
            + RECORD_STEPS
        )
    if not use.is_measured and len(use.links):
        machine = scene.loaded.machine
        why = (
            f"{machine.name} has not all of these ranks"
            if machine is not None
            else "The machine is not known"
        )
        notes.append(
            f"{why}: lines join ranks that sent to one another, and "
            "full is the most that any pair moved in one bin. Give --machine."
        )
    if found.left_out > 0.001:
        notes.append(
            f"{100 * found.left_out:.1f} % of all bytes, of the least busy pairs, are "
            "left out."
        )
    if found.unknown_nbytes:
        notes.append(
            f"{found.unknown_nbytes / 1e6:.4g} MB went to several peers at once by "
            "plans that are not known here; they are left out."
        )
    if shown < len(use.links):
        notes.append(f"The {shown:,} busiest of {len(use.links):,} links are shown.")
    return notes
