"""One recording of many: numbers that all share, one clock, each rank once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stretto.errors import TraceError
from stretto.trace.align import aligned
from stretto.trace.file import SUFFIX, read, renumbered
from stretto.trace.tables import CALL, STEP, CallKind, Comm, Recording, Run

__all__ = ["merge", "read_all"]


def merge(recordings: Sequence[Recording]) -> Recording:
    """Return several recordings as one, its times on the first host's clock."""
    comms: dict[Comm, int] = {}
    kinds: dict[CallKind, int] = {}
    parts = [renumbered(one, comms, kinds) for one in recordings]
    infos = [info for one in parts for info in one.ranks]
    many = Counter(info.rank for info in infos)
    for rank, count in many.items():
        if count > 1:
            raise TraceError(
                f"{count} recordings have rank {rank}; want those of one run, each once"
            )
    runs = [one.run for one in parts if one.run != Run()]
    return aligned(
        Recording(
            calls=np.concatenate([np.zeros(0, CALL), *(p.calls for p in parts)]),
            steps=np.concatenate([np.zeros(0, STEP), *(p.steps for p in parts)]),
            ranks=tuple(sorted(infos, key=lambda info: info.rank)),
            comms=tuple(comms),
            kinds=tuple(kinds),
            run=runs[0] if runs else Run(),
            dropped=tuple(d for one in parts for d in one.dropped),
            cut=tuple(text for one in parts for text in one.cut),
        )
    )


def read_all(path: str | Path) -> Recording:
    """Return the recording of a file, or of all files of a folder, as one."""
    path = Path(path)
    if not path.is_dir():
        return read(path)
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise TraceError(f"{path}: there is no recording (*{SUFFIX}) in this folder")
    return merge([_named(read(file), file) for file in found])


def _named(recording: Recording, file: Path) -> Recording:
    if not recording.ranks and recording.num_events:
        raise TraceError(f"{file}: it does not say whose it is")
    return recording
