"""What workers have moved since they were asked last, and how Prometheus is told.

The shapes are those of vLLM's `KVConnectorStats` and `KVConnectorPromMetrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SERIES = ("load_seconds", "load_bytes", "save_seconds", "save_bytes")
_COUNTS = ("failed", "expired", "late")
_MOST = 4096
"""Values of a series that are kept when nobody asks."""


class Stats:
    """Series of one value a request, and counts."""

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        """`data` is another's `to_dict`."""
        self.data: dict[str, Any] = {}
        self.reset()
        for name, value in (data or {}).items():
            self.data[name] = list(value) if isinstance(value, list) else value

    def reset(self) -> None:
        """Begin anew."""
        self.data = {name: [] for name in _SERIES} | dict.fromkeys(_COUNTS, 0)

    def moved(self, what: str, nbytes: int, seconds: float) -> None:
        """Note a request that was loaded, or saved."""
        for name, value in (("seconds", seconds), ("bytes", nbytes)):
            series = self.data[f"{what}_{name}"]
            series.append(value)
            del series[:-_MOST]

    def count(self, what: str) -> None:
        """Note one more."""
        self.data[what] += 1

    def is_empty(self) -> bool:
        """Return whether there is nothing to tell."""
        return not any(self.data.values())

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can write."""
        return self.data

    def aggregate(self, other: Stats) -> Stats:
        """Add another worker's, and return the whole."""
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, type(value)()) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return a few figures for people."""
        loads, saves = len(self.data["load_bytes"]), len(self.data["save_bytes"])
        nbytes = sum(self.data["load_bytes"]) + sum(self.data["save_bytes"])
        seconds = sum(self.data["load_seconds"]) + sum(self.data["save_seconds"])
        return {
            "loads": loads, "saves": saves, "bytes": nbytes, "seconds": seconds,
            **{name: self.data[name] for name in _COUNTS},
        }  # fmt: skip


_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
_BYTES = tuple(float(1 << n) for n in range(12, 36, 2))
_ABOUT = {
    "load_seconds": "Seconds in which the keys and values of a request were fetched.",
    "load_bytes": "Bytes of keys and values that were fetched for a request.",
    "save_seconds": "Seconds in which the keys and values of a request were put.",
    "save_bytes": "Bytes of keys and values that were put for a request.",
    "failed": "Requests whose keys and values did not come whole.",
    "expired": "Requests whose blocks nobody fetched in time.",
    "late": "Notifications of requests that were not kept any more.",
}


class Metrics:
    """Hands figures to Prometheus' classes, or to those that stand for them."""

    def __init__(
        self, metric_types: Mapping[Any, Any], labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
    ) -> None:  # fmt: skip
        """See vLLM's `KVConnectorPromMetrics`."""
        kinds = {kind.__name__: made for kind, made in metric_types.items()}
        self._by_engine: dict[str, dict[int, Any]] = {}
        for name, about in _ABOUT.items():
            how: dict[str, Any] = {
                "name": f"vllm:stretto_kv_{name}", "documentation": about,
                "labelnames": list(labelnames),
            }  # fmt: skip
            if name in _SERIES:
                how["buckets"] = _SECONDS if name.endswith("seconds") else _BYTES
            whole = kinds["Histogram" if name in _SERIES else "Counter"](**how)
            self._by_engine[name] = {
                engine: whole.labels(*values)
                for engine, values in per_engine_labelvalues.items()
            }

    def observe(
        self, transfer_stats_data: Mapping[str, Any], engine_idx: int = 0
    ) -> None:
        """Record one engine's figures."""
        for name in _SERIES:
            for value in transfer_stats_data.get(name, ()):
                self._by_engine[name][engine_idx].observe(value)
        for name in _COUNTS:
            if more := transfer_stats_data.get(name, 0):
                self._by_engine[name][engine_idx].inc(more)
