"""What a search remembers from one start to the next: a file, as soon as it knows.

What has been decided, and found to fail; and beside it, a line each, what has been
measured: a search that is begun again is told the same times, and so goes the same way
to where it was. A pin that is being tried when the ranks end has ended them: whoever
starts them again says so, and it is not tried again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stretto.bench.measuring.control import Control
from stretto.bench.workload.cases import CallCase
from stretto.bench.workload.task import BenchTask
from stretto.compiler.plan import Schedule
from stretto.errors import ParseError, reading
from stretto.search.halving import Decision
from stretto.search.noise import Interval

_HOPELESS = 3
_DIGITS = 5


class SearchMemory:
    """The file, which rank 0 reads and writes for all."""

    def __init__(self, task: BenchTask, control: Control) -> None:
        """Read it (collective)."""
        self._path = Path(str(task.options["state"]))
        self._is_mine = control.rank == 0
        memory = "zero_copy" if task.registered else "staged"
        self._how = f"{memory} {task.num_ranks} {task.dtype} {task.mode}"
        read = (_read(self._path), _read_trials(self._path)) if self._is_mine else None
        kept, trials = control.agree(read)
        self._decided: dict[str, Any] = kept.get("decided", {})
        self.failed: dict[str, str] = kept.get("failed", {})
        """Why pins are not used, by pin and size."""
        self._suspects: list[str] = kept.get("suspects", [])
        self.trials = [t for t in trials if t["how"] == self._how]
        self._before = {(t["test"], t["nbytes"], t["pin"]): t for t in self.trials}
        self._good: set[str] = {way(trial["pin"]) for trial in self.trials}

    def decided(self, test: str, nbytes: int) -> Mapping[str, Any] | None:
        """Return what was decided before."""
        found: Mapping[str, Any] | None = self._decided.get(self._key(test, nbytes))
        return found

    def decide(self, test: str, nbytes: int, found: Decision) -> None:
        """Keep a decision."""
        self._decided[self._key(test, nbytes)] = asdict(found)
        self._write([])

    def has_failed(self, pin: str, case: CallCase) -> bool:
        """Return whether a pin is known not to work at a size, or nowhere.

        Every failure costs a deadline, and new communicators: a way that has failed
        three times, whatever the algorithm, and never worked, is not tried again.
        """
        if f"{pin} {case.nbytes}" in self.failed:
            return True
        return way(pin) not in self._good and self._failures(pin) >= _HOPELESS

    def together(self, pins: Sequence[str], case: CallCase) -> list[str]:
        """Return which of the pins are measured next, side by side.

        What one failure breaks, all that are beside it lose: so what may have ended the
        ranks goes alone, as does what runs in a way that has only failed so far; and of
        ways that nobody has tried, one pin each goes before the others.
        """
        for pin in pins:
            if f"{pin} {case.nbytes}" in self._suspects:
                return [pin]
        unknown: dict[str, str] = {}
        for pin in pins:
            if way(pin) not in self._good:
                unknown.setdefault(way(pin), pin)
        for pin in unknown.values():
            if self._failures(pin):
                return [pin]
        return list(unknown.values() or pins)

    def worked(self, pins: Iterable[str], case: CallCase) -> None:
        """Note what gave what the oracle says; all ranks are told the same."""
        for pin in pins:
            self._good.add(way(pin))
            if (suspect := f"{pin} {case.nbytes}") in self._suspects:
                self._suspects.remove(suspect)

    def recalled(
        self, pins: Iterable[str], case: CallCase, batches: int
    ) -> dict[str, Any]:
        """Return the times of pins that were measured so long before this start."""
        found: dict[str, Any] = {}
        for pin in pins:
            trial = self._before.get((case.test, case.nbytes, pin))
            if trial is not None and trial["batches"] >= batches:
                found[pin] = trial["times"]
        return found

    def fail(self, pin: str, case: CallCase, why: str) -> None:
        """Keep that a pin does not work."""
        self.failed[f"{pin} {case.nbytes}"] = why
        self._write([])

    def try_(self, pins: Sequence[str], case: CallCase) -> None:
        """Keep what is about to be called, should nobody come back from it."""
        self._write([f"{pin} {case.nbytes}" for pin in pins], only_trying=True)

    def tried(self) -> None:
        """Note that everybody came back."""
        self._write([], only_trying=True)

    def note(self, trials: Iterable[dict[str, Any]]) -> None:
        """Keep trials, of times that are in order."""
        fresh = [{"how": self._how, **trial} for trial in trials]
        self.trials += fresh
        if self._is_mine and fresh:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _trials(self._path).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(_short(t)) + "\n" for t in fresh)

    def _failures(self, pin: str) -> int:
        mine = way(pin)
        return sum(way(failed.rpartition(" ")[0]) == mine for failed in self.failed)

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


def forget(path: Path) -> None:
    """Begin anew."""
    for one in (path, _trials(path), _trying(path)):
        one.unlink(missing_ok=True)


def decision_of(data: Mapping[str, Any]) -> Decision:
    """Read a decision back."""
    intervals = {
        name: Interval(**data[name]) if data.get(name) else None
        for name in ("interval", "shipped_interval")
    }
    return Decision(**{**data, **intervals})


def way(pin: str) -> str:
    """Return how a pin moves data: protocol, direction and memory, no numbers."""
    schedule = Schedule.parse(pin.partition(" ")[2])
    return str(replace(schedule, blocks=1, threads=512, tile_bytes=1 << 18, depth=4))


def _trying(path: Path) -> Path:
    return path.with_suffix(".trying")


def _trials(path: Path) -> Path:
    return path.with_suffix(".trials")


def _short(trial: Mapping[str, Any]) -> dict[str, Any]:
    times = [float(f"{us:.{_DIGITS}g}") for us in trial["times"]]
    return {**trial, "times": times}


def _read_trials(path: Path) -> list[dict[str, Any]]:
    """Return what was measured; the last line may not have been written whole."""
    found: list[dict[str, Any]] = []
    if _trials(path).is_file():
        with reading(ParseError, str(_trials(path)), "what stretto tune keeps"):
            for line in _trials(path).read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    found.append(json.loads(line))
            for trial in found:
                way(trial["pin"])
                _ = trial["how"], trial["test"] + trial["pin"], trial["nbytes"] + 0
                if not all(type(us) in (int, float) for us in trial["times"]):
                    raise TypeError("times that are no numbers")
                _ = trial["batches"] + 0
    return found


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    want = "what stretto tune keeps, or no such file"
    with reading(ParseError, str(path), want):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kinds = {"decided": dict, "failed": dict, "suspects": list}
        if not all(isinstance(found.get(k, kind()), kind) for k, kind in kinds.items()):
            raise TypeError("not of decided, failed and suspects")
        for pin in (*found.get("failed", ()), *found.get("suspects", ())):
            way(pin.rpartition(" ")[0])
        for data in found.get("decided", {}).values():
            decision_of(data)
        return found
