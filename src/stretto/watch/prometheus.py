"""A summary as Prometheus' text: what a node's exporter hands on."""

from __future__ import annotations

from collections.abc import Iterator

from stretto._version import __version__
from stretto.trace import Recording
from stretto.watch.summary import Summary

_METRICS = (
    ("stretto_calls_total", "counter", "Calls of a collective."),
    ("stretto_bus_bandwidth_gbs", "gauge", "Bus bandwidth by the median time, GB/s."),
    ("stretto_collective_exec_time_microseconds", "gauge", "Time of a call."),
    ("stretto_collective_wait_microseconds", "gauge", "Of it until the last came."),
    ("stretto_model_ratio", "gauge", "Median time over the model's."),
)


def prometheus_lines(recording: Recording, summary: Summary) -> Iterator[str]:
    """Yield the lines; labels are those of NCCL Inspector where they mean the same."""
    nodes = len(recording.hosts)
    for name, kind, about in _METRICS:
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} {kind}"
        for row in summary.rows:
            labels = {
                "version": __version__,
                "comm_name": row.comm,
                "n_nodes": nodes,
                "nranks": row.num_ranks,
                "collective": row.collective,
                "message_size": row.size,
                "algo_proto": ",".join(row.algorithms),
            }
            match name:
                case "stretto_calls_total":
                    yield _line(name, labels, row.count)
                case "stretto_bus_bandwidth_gbs" if row.busbw_gbps:
                    yield _line(name, labels, row.busbw_gbps)
                case "stretto_collective_exec_time_microseconds" if row.p50_us:
                    yield _line(name, labels | {"quantile": "0.5"}, row.p50_us)
                    yield _line(name, labels | {"quantile": "0.99"}, row.p99_us)
                case "stretto_collective_wait_microseconds" if row.p50_us:
                    yield _line(name, labels, row.wait_us)
                case "stretto_model_ratio" if row.gap:
                    yield _line(name, labels, row.gap)
    yield from _of_ranks(summary)


def _of_ranks(summary: Summary) -> Iterator[str]:
    for name, about, found in (
        (
            "stretto_exposed_seconds",
            "Time in calls that the rank waited for.",
            [(one.rank, one.exposed_s) for one in summary.shares],
        ),
        (
            "stretto_kept_others_seconds",
            "How long others waited for this rank alone.",
            [(one.rank, one.kept_us / 1e6) for one in summary.late],
        ),
    ):
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} gauge"
        for rank, value in sorted(found):
            yield _line(name, {"rank": rank}, value)


def _line(name: str, labels: dict[str, object], value: float) -> str:
    said = ",".join(f'{key}="{_escaped(str(v))}"' for key, v in labels.items())
    return f"{name}{{{said}}} {value:.9g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
