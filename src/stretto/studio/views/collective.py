"""Inside one collective: chunks on their way, by the program or as measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.errors import CallError
from stretto.studio.analysis.contributions import contributions_of
from stretto.studio.analysis.flows import flows_of, joined
from stretto.studio.analysis.index import Index
from stretto.studio.analysis.scene import Args, Scene, number
from stretto.studio.inputs.loading import LoadedInputs
from stretto.studio.units import time_name
from stretto.trace import STEP_KINDS
from stretto.watch import dense_ids

TITLE = "Inside"
ORDER = 6
_MOST_CHOICES = 200
_MOST_MOVES = 40_000
_MOST_BARS = 60_000


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a program, or steps were recorded."""
    return loaded.program is not None or (
        loaded.recording is not None and len(loaded.recording.steps) > 0
    )


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return the moves of one collective: `by=program`, or `by=time` of one `call`."""
    has_program = scene.loaded.program is not None
    has_steps = (
        scene.loaded.recording is not None and len(scene.loaded.recording.steps) > 0
    )
    by = args.get("by") or ("program" if has_program else "time")
    ways = [*(["program"] * has_program), *(["time"] * has_steps)]
    if by not in ways:
        raise CallError(f"by={by[:40]!r}; want one of {', '.join(ways) or 'none'}")
    found = _by_program(scene) if by == "program" else _by_time(scene, args)
    recording = scene.loaded.recording
    infos = recording.ranks if recording is not None else ()
    is_virtual = any(info.clock == "virtual" for info in infos)
    return {"by": by, "ways": ways, "is_virtual": is_virtual, **found}


def _by_program(scene: Scene) -> dict[str, Any]:
    program = scene.loaded.program
    assert program is not None  # `data` looked
    found = contributions_of(program)
    if found is None:
        raise CallError(
            f"{program.name}: {len(program.ops):,} operations are no picture; show it "
            "for fewer ranks"
        )
    kept = slice(0, _MOST_MOVES)
    notes = []
    if len(found.step) > _MOST_MOVES:
        notes.append(f"The first {_MOST_MOVES:,} of {len(found.step):,} moves.")
    if found.held is None:
        notes.append("What ranks hold is not drawn: there are too many chunks.")
    return {
        "title": program.summary,
        "ranks": np.arange(program.num_ranks, dtype=np.int32),
        "num_steps": found.num_steps,
        "src": found.src[kept],
        "dst": found.dst[kept],
        "begin": found.step[kept].astype(np.float32),
        "end": found.step[kept].astype(np.float32) + 1,
        "op": found.op[kept],
        "adds": found.adds[kept],
        "texts": found.texts,
        "chunks": found.chunks,
        "held": found.held.ravel() if found.held is not None else None,
        "notes": notes,
    }


def _by_time(scene: Scene, args: Args) -> dict[str, Any]:
    index = scene.index
    choices = _choices(index)
    if not choices:
        raise CallError("steps were recorded, but of no call; record both")
    call = number(args, "call", 0, most=len(choices) - 1)
    instance = choices[call]
    comm = int(index.instance_comm[instance])
    seq = int(index.instance_seq[instance])
    members = np.sort(index.place(np.array(index.recording.comms[comm].members)))
    steps = index.steps
    rows = np.flatnonzero((steps["comm"] == comm) & (steps["seq"] == seq))
    flows = joined(list(flows_of(index, scene.plans, rows)))
    order = np.argsort(flows.begin, kind="stable")[:_MOST_MOVES]
    origin = float(index.us(steps["begin"][rows]).min())
    notes = []
    if len(flows.src) > _MOST_MOVES:
        notes.append(f"The first {_MOST_MOVES:,} of {len(flows.src):,} moves.")
    if flows.unknown_nbytes:
        notes.append(
            f"{flows.unknown_nbytes:,.0f} bytes of steps with several peers are left "
            "out: their plan is not known here."
        )
    if len(rows) > _MOST_BARS:
        notes.append(f"Bars are of the first {_MOST_BARS:,} of {len(rows):,} steps.")
    return {
        "title": _spelled(index, instance),
        "choices": [_spelled(index, one) for one in choices],
        "call": call,
        "ranks": index.world[members].astype(np.int32),
        "src": np.searchsorted(members, flows.src[order]).astype(np.int32),
        "dst": np.searchsorted(members, flows.dst[order]).astype(np.int32),
        "begin": (flows.begin[order] - origin).astype(np.float32),
        "end": (flows.end[order] - origin).astype(np.float32),
        "nbytes": flows.nbytes[order].astype(np.float64),
        "bars": _bars(index, rows[:_MOST_BARS], members, origin),
        "kinds": list(STEP_KINDS),
        "notes": notes,
    }


def _bars(
    index: Index, rows: np.ndarray, members: np.ndarray, origin: float
) -> dict[str, Any]:
    """Return what every lane did, and the part of it that it waited for."""
    steps = index.steps[rows]
    place = np.searchsorted(members, index.place(steps["rank"]))
    return {
        "row": place.astype(np.int32),
        "lane": steps["lane"].astype(np.int32),
        "kind": steps["kind"].astype(np.int32),
        "step": steps["step"].astype(np.int32),
        "begin": (index.us(steps["begin"]) - origin).astype(np.float32),
        "wait": (steps["wait"] / 1e3).astype(np.float32),
        "end": (index.us(steps["end"]) - origin).astype(np.float32),
        "nbytes": steps["nbytes"].astype(np.float64),
    }


def _choices(index: Index) -> list[int]:
    """Return collectives whose steps were recorded: the longest ones, longest first."""
    steps = index.steps
    seqs, place = dense_ids(steps["seq"])
    many = max(1, len(seqs))
    pairs = dense_ids(steps["comm"].astype(np.int64) * many + place)[0]
    wanted = index.instance_comm * (1 << 40) + index.instance_seq
    recorded = (pairs // many) * (1 << 40) + seqs[pairs % many]
    instances = np.flatnonzero(np.isin(wanted, recorded))
    lasted = (index.end_us - index.first_us)[instances]
    longest = np.argsort(-lasted, kind="stable")[:_MOST_CHOICES]
    return [int(instance) for instance in instances[longest]]


def _spelled(index: Index, instance: int) -> str:
    kind = index.recording.kinds[int(index.instance_kind[instance])]
    comm = index.recording.comms[int(index.instance_comm[instance])]
    lasted = index.end_us[instance] - index.first_us[instance]
    return (
        f"{comm.name} {int(index.instance_seq[instance])}: {kind.collective} of "
        f"{int(index.instance_nbytes[instance]):,} bytes, {time_name(lasted)}"
    )
