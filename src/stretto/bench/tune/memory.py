"""What a search remembers from one start to the next: a file, as soon as it knows.

What has been decided, tried, and found to fail. A pin that is being tried when the
ranks end has ended them: whoever starts them again says so, and it is not tried again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stretto.bench.cases import Case
from stretto.bench.control import Control
from stretto.bench.stats import Interval
from stretto.bench.task import Task
from stretto.bench.tune.search import Decision
from stretto.plan import Schedule

__all__ = ["Memory", "blame", "decision_of"]


_HOPELESS = 3


class Memory:
    """The file, which rank 0 reads and writes for all."""

    def __init__(self, task: Task, control: Control) -> None:
        """Read it (collective)."""
        self._path = Path(str(task.options["state"]))
        self._is_mine = control.rank == 0
        memory = "zero_copy" if task.registered else "staged"
        self._how = f"{memory} {task.num_ranks} {task.dtype} {task.mode}"
        kept = control.agree(_read(self._path) if self._is_mine else None)
        self._decided: dict[str, Any] = kept.get("decided", {})
        self.failed: dict[str, str] = kept.get("failed", {})
        """Why pins are not used, by pin and size."""
        self._suspects: list[str] = kept.get("suspects", [])
        self.trials: list[dict[str, Any]] = kept.get("trials", [])
        self._good: set[str] = {_way(trial["pin"]) for trial in self.trials}

    def decided(self, test: str, nbytes: int) -> Mapping[str, Any] | None:
        """Return what was decided before."""
        found: Mapping[str, Any] | None = self._decided.get(self._key(test, nbytes))
        return found

    def decide(self, test: str, nbytes: int, found: Decision) -> None:
        """Keep a decision."""
        self._decided[self._key(test, nbytes)] = asdict(found)
        self._write([])

    def has_failed(self, pin: str, case: Case) -> bool:
        """Return whether a pin is known not to work at a size, or nowhere.

        Every failure costs a deadline, and new communicators: a way that has failed
        three times, whatever the algorithm, and never worked, is not tried again.
        """
        if f"{pin} {case.nbytes}" in self.failed:
            return True
        way = _way(pin)
        if way in self._good:
            return False
        failures = sum(_way(failed.rpartition(" ")[0]) == way for failed in self.failed)
        return failures >= _HOPELESS

    def worked(self, pins: Iterable[str]) -> None:
        """Note what gave what the oracle says; all ranks are told the same."""
        self._good |= {_way(pin) for pin in pins}

    def fail(self, pin: str, case: Case, why: str) -> None:
        """Keep that a pin does not work."""
        self.failed[f"{pin} {case.nbytes}"] = why
        self._write([])

    def is_suspect(self, pin: str, case: Case) -> bool:
        """Return whether this pin, or one beside it, has ended the ranks before."""
        return f"{pin} {case.nbytes}" in self._suspects

    def try_(self, pins: Sequence[str], case: Case) -> None:
        """Keep what is about to be called, should nobody come back from it."""
        self._write([f"{pin} {case.nbytes}" for pin in pins], only_trying=True)

    def tried(self) -> None:
        """Note that everybody came back."""
        self._write([], only_trying=True)

    def note(self, trial: dict[str, Any]) -> None:
        """Keep a trial; it is written with the next decision."""
        self.trials.append(trial)

    def _key(self, test: str, nbytes: int) -> str:
        return f"{test} {self._how} {nbytes}"

    def _write(self, trying: list[str], *, only_trying: bool = False) -> None:
        if not self._is_mine:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if trying:
            _trying(self._path).write_text(json.dumps(trying), encoding="utf-8")
        else:
            _trying(self._path).unlink(missing_ok=True)
        if only_trying:
            return
        kept = {
            "decided": self._decided,
            "failed": self.failed,
            "suspects": self._suspects,
            "trials": self.trials,
        }
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        fresh.replace(self._path)


def blame(path: Path, why: str) -> bool:
    """Note that what was being tried when the ranks ended has failed; False if none.

    Where it was one of several, they are suspects, and measured apart from now on.
    """
    try:
        trying = json.loads(_trying(path).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    if not trying:
        return False
    kept = _read(path)
    if len(trying) == 1:
        kept.setdefault("failed", {})[trying[0]] = why
    else:
        kept.setdefault("suspects", []).extend(trying)
    path.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    _trying(path).unlink(missing_ok=True)
    return True


def decision_of(data: Mapping[str, Any]) -> Decision:
    """Read a decision back."""
    intervals = {
        name: Interval(**data[name]) if data.get(name) else None
        for name in ("interval", "shipped_interval")
    }
    return Decision(**{**data, **intervals})


def _way(pin: str) -> str:
    """Return how a pin moves data: protocol, direction and memory, no numbers."""
    schedule = Schedule.parse(pin.partition(" ")[2])
    return str(replace(schedule, blocks=1, threads=512, tile_bytes=1 << 18, depth=4))


def _trying(path: Path) -> Path:
    return path.with_suffix(".trying")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
