"""Measure: how fast each collective is, beside what people use today."""

from stretto.bench.contender import BUFFERS, Contender
from stretto.bench.hop import HOP_SIZES, measure_hop, measured_machine
from stretto.bench.machine import machine as machine_of
from stretto.bench.peers import expand, names
from stretto.bench.ranks.launch import (
    launched_ranks,
    run_ranks,
    runs_of,
    under_launcher,
)
from stretto.bench.ranks.supervise import run_search, run_task
from stretto.bench.showing.compare import compare, show_verdicts
from stretto.bench.showing.document import as_csv, as_text, document_of, read_document
from stretto.bench.showing.formats import nccl_format, osu_format
from stretto.bench.showing.plot import open_figure, plot, plot_tuning
from stretto.bench.showing.report import load_warning, markdown, show
from stretto.bench.workload.cases import PAIRS, PATTERNS, TESTS, VECTOR
from stretto.bench.workload.task import MODES, BenchTask
from stretto.bench.workload.traffic import read_matrix

__all__ = [
    "BUFFERS",
    "HOP_SIZES",
    "MODES",
    "PAIRS",
    "PATTERNS",
    "TESTS",
    "VECTOR",
    "BenchTask",
    "Contender",
    "as_csv",
    "as_text",
    "compare",
    "document_of",
    "expand",
    "launched_ranks",
    "load_warning",
    "machine_of",
    "markdown",
    "measure_hop",
    "measured_machine",
    "names",
    "nccl_format",
    "open_figure",
    "osu_format",
    "plot",
    "plot_tuning",
    "read_document",
    "read_matrix",
    "run_ranks",
    "run_search",
    "run_task",
    "runs_of",
    "show",
    "show_verdicts",
    "under_launcher",
]
