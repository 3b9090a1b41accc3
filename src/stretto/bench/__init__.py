"""Measure: how fast each collective is, beside what people use today."""

from stretto.bench.cases import PAIRS, PATTERNS, TESTS, VECTOR
from stretto.bench.compare import compare, show_verdicts
from stretto.bench.contender import BUFFERS
from stretto.bench.document import as_csv, as_text, document_of, read_document
from stretto.bench.formats import nccl_format, osu_format
from stretto.bench.hop import HOP_SIZES, measure_hop, measured_machine
from stretto.bench.launch import (
    launched_ranks,
    run_ranks,
    runs_of,
    under_launcher,
)
from stretto.bench.machine import machine as machine_of
from stretto.bench.peers import expand, names
from stretto.bench.plot import open_figure, plot
from stretto.bench.report import load_warning, markdown, show
from stretto.bench.supervise import run_task
from stretto.bench.task import MODES, Task
from stretto.bench.traffic import read_matrix

__all__ = [
    "BUFFERS",
    "HOP_SIZES",
    "MODES",
    "PAIRS",
    "PATTERNS",
    "TESTS",
    "VECTOR",
    "Task",
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
    "read_document",
    "read_matrix",
    "run_ranks",
    "run_task",
    "runs_of",
    "show",
    "show_verdicts",
    "under_launcher",
]
