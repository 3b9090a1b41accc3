"""Jobs that are graphs of tasks: what each needs, and what must come first."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stretto.errors import CallError, why_unread

_MOST_TASKS, _MOST_DAGS, _MOST_NBYTES = 2000, 1000, 16 << 20


@dataclass(frozen=True, kw_only=True)
class DagTask:
    """Work of some milliseconds that needs shares of a server's resources."""

    ms: float
    needs: tuple[float, ...]
    after: tuple[int, ...] = ()
    """The tasks of the graph that must have ended."""


@dataclass(frozen=True, kw_only=True)
class Dag:
    """Tasks, each behind those that it comes after."""

    name: str
    tasks: tuple[DagTask, ...]
    arrives_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no such graph."""
        where, kinds = f"dag {self.name}", {len(task.needs) for task in self.tasks}
        if not 1 <= len(self.tasks) <= _MOST_TASKS or len(kinds) != 1 or 0 in kinds:
            raise CallError(
                f"{where}: {len(self.tasks)} tasks of {sorted(kinds)} resources; want 1"
                f" to {_MOST_TASKS}, all of as many resources"
            )
        if not 0 <= self.arrives_ms < math.inf:
            raise CallError(
                f"{where}, arrives_ms: got {self.arrives_ms}; want 0 or more"
            )
        for i, task in enumerate(self.tasks):
            if not 0 < task.ms < 1e9:
                raise CallError(
                    f"{where}, task {i}, ms: got {task.ms}; want more than 0"
                )
            if not all(0 <= need <= 1 for need in task.needs):
                raise CallError(
                    f"{where}, task {i}, needs: got {task.needs}; want shares, 0 to 1"
                )
            if wrong := [j for j in task.after if not 0 <= j < i]:
                raise CallError(
                    f"{where}, task {i}, after: got {wrong[0]}; want tasks before it"
                )

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """Return by task all that must have ended, directly or not."""
        found: list[frozenset[int]] = []
        for task in self.tasks:
            found.append(frozenset(task.after).union(*(found[j] for j in task.after)))
        return tuple(found)

    @cached_property
    def then(self) -> tuple[tuple[int, ...], ...]:
        """Return by task those that come right after it."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for i, task in enumerate(self.tasks):
            for j in task.after:
                found[j].append(i)
        return tuple(map(tuple, found))

    @cached_property
    def tails_ms(self) -> tuple[float, ...]:
        """Return by task the longest way to the end, itself included."""
        found = [0.0] * len(self.tasks)
        for i in reversed(range(len(self.tasks))):
            longest = max((found[j] for j in self.then[i]), default=0.0)
            found[i] = self.tasks[i].ms + longest
        return tuple(found)

    def bound_ms(self, servers: int) -> float:
        """Return what no schedule beats: the longest way, or the fullest resource."""
        works = zip(*([n * t.ms for n in t.needs] for t in self.tasks), strict=True)
        fullest: float = max(sum(work) for work in works) / servers
        return max(*self.tails_ms, fullest)


def read_dags(path: str | Path) -> tuple[Dag, ...]:
    """Return the graphs of JSON: {"dags": [{name, tasks: [{ms, needs, after}]}]}."""
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_NBYTES:
            raise CallError(f"{file}: want at most {_MOST_NBYTES >> 20} MiB")
        rows = json.loads(file.read_text(encoding="utf-8"))["dags"]
        if not isinstance(rows, list) or not 1 <= len(rows) <= _MOST_DAGS:
            raise CallError(f"{file}, dags: want a list of 1 to {_MOST_DAGS}")
        return tuple(_dag(f"dag{i}", row) for i, row in enumerate(rows))
    except CallError as e:
        raise CallError(f"{file}: {e}") from None
    except OSError as e:
        raise CallError(f"{file}: {why_unread(e)}; want JSON of dags") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        said = f"{type(e).__name__}: {' '.join(str(e).split())[:120]}"
        raise CallError(
            f"{file}: {said}; want dags of tasks with ms, needs and after"
        ) from None
    except RecursionError:
        raise CallError(f"{file}: nests too deeply; want JSON of dags") from None


def _dag(name: str, row: dict[str, Any]) -> Dag:
    tasks = tuple(
        DagTask(
            ms=float(task["ms"]),
            needs=tuple(float(need) for need in task["needs"]),
            after=tuple(int(j) for j in task.get("after", ())),
        )
        for task in row["tasks"]
    )
    return Dag(
        name=str(row.get("name", name)),
        tasks=tasks,
        arrives_ms=float(row.get("arrives_ms", 0.0)),
    )


def generate_dags(
    many: int, *, tasks: int, seed: int, gap_ms: float = 0.0, resources: int = 2
) -> tuple[Dag, ...]:
    """Return graphs such as queries make: stages of like tasks, that join in the end.

    Scans side by side, then joins of few stages each, and now and then a long chain.
    """
    draw, found, at = random.Random(f"dags {seed}"), [], 0.0
    for n in range(many):
        made: list[DagTask] = []
        stages: list[range] = []
        while len(made) < tasks:
            width = min(tasks - len(made), draw.choice((1, 1, 2, 2, 3, 4, 6)))
            some = draw.sample(stages[-5:], min(len(stages[-5:]), draw.randint(0, 2)))
            ms = draw.lognormvariate(4.0, 0.9)
            high = draw.randrange(resources)
            needs = [draw.uniform(0.05, 0.35) for _ in range(resources)]
            needs[high] = draw.uniform(0.2, 0.9)
            first = len(made)
            for k in range(width):
                after = {j for stage in some for j in _joined(stage, k, width)}
                made.append(
                    DagTask(
                        ms=float(max(1, round(ms * draw.uniform(0.8, 1.25)))),
                        needs=tuple(needs),
                        after=tuple(sorted(after)),
                    )
                )
            stages.append(range(first, first + width))
        found.append(Dag(name=f"dag{n}", tasks=tuple(made), arrives_ms=at))
        at += draw.expovariate(1 / gap_ms) if gap_ms else 0.0
    return tuple(found)


def _joined(stage: range, k: int, width: int) -> list[int]:
    """Return what the k-th of a stage needs of another: its own part, or all of it."""
    return [stage[k]] if len(stage) == width else list(stage)


def loaded(
    many: int, *, servers: int, load: float, seed: int, tasks: int = 20
) -> tuple[Dag, ...]:
    """Return graphs that come so fast that their fullest resources have such a load."""
    still = generate_dags(many, tasks=tasks, seed=seed)
    works = [
        max(
            sum(n)
            for n in zip(*([t.ms * n for n in t.needs] for t in dag.tasks), strict=True)
        )
        for dag in still
    ]
    gap = sum(works) / many / load / servers
    return generate_dags(many, tasks=tasks, seed=seed, gap_ms=gap)
