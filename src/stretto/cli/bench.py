"""Measure collectives, checked in the same run, beside Gloo, MPI, NCCL and others."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from stretto import bench
from stretto.cli.output import Progress, table
from stretto.errors import CallError
from stretto.runtime.choice import parse_sizes

_FORMATS = {"osu": bench.osu_format, "nccl": bench.nccl_format}
_ELSEWHERE = (*bench.PAIRS, *bench.VECTOR, *bench.PATTERNS)
_GROUPS = {
    "all": bench.TESTS,
    "p2p": bench.PAIRS,
    "collectives": tuple(t for t in bench.TESTS if t not in _ELSEWHERE),
    "vector": bench.VECTOR,
    "patterns": bench.PATTERNS,
}
_RANKS = 2
_OTHERS = ("matrix", "hop", "transfer", "weights", "experts")
_ALL_SIZES, _ONE_SIZES = "8,256,4K,64K,1M,4M", "8:4M:4"
_ALL_BUDGET_S, _ROW_BUDGET_S = 170.0, 1.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "tests",
        nargs="*",
        metavar="TEST",
        help=f"{', '.join((*_GROUPS, *_OTHERS, *bench.TESTS))}",
    )
    _what(parser)
    _how(parser)
    _output(parser)


def _what(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=int, help="start so many [2; those of a launcher]")
    add("--sizes", "--size", help="full vectors, such as 8, 4K, 1K:1G:4")
    add("--peers", default="", help=f"all, or of {', '.join(bench.names())} [none]")
    add("--algorithms", default="", metavar="PINS", help="also these; all; ';' between")
    add("--dtype", help="element type [float32; bfloat16 on GPUs]")
    add("--op", default="sum", help="operator [sum]")
    add("--root", type=int, default=0, help="of rooted collectives [0]")
    add("--skew", type=float, default=1.0, help="of routed experts, 0: uniform [1]")
    add("--traffic", metavar="FILE", help="who sends how much to whom, for matrix")
    add("--machine-file", metavar="FILE", help="of hop: a machine as it was measured")
    add("--carrier", default="", help="of hop: one of them [all that are ready]")
    add("--paths", metavar="P,P", help="of transfer: shared, cross-memory, tcp [all]")
    add(
        "--model",
        metavar="NAME",
        help="of transfer: whose cache, or all [llama-3.1-8b]",
    )
    add("--shape", metavar="E,K,H", help="of experts: how many, choices, hidden")
    add("--hosts", type=int, default=2, help="that it has, of --ranks each [2]")


def _how(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="cpu", choices=("cpu", "cuda"), help="[cpu]")
    add("--buffer", help=f"{', '.join(bench.BUFFERS)} [numpy; torch on GPUs]")
    add("--registered", action="store_true", help="memory of comm.empty(): zero-copy")
    add("--in-place", action="store_true", help="where the collective has such a form")
    add("--cold", action="store_true", help="caches are emptied before every call")
    add("--mode", default="blocking", help=f"{', '.join(bench.MODES)} [blocking]")
    add("--budget", type=float, metavar="S", help="seconds for all rows together")
    add("--batches", type=int, default=40, help="at most [40]")
    add("--batch-us", type=float, default=100.0, help="at least 20 [100]")
    add("--deadline", type=float, metavar="S", help="what hangs longer has failed [10]")
    add("--seed", type=int, default=0, help="of inputs and routes [0]")


def _output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", nargs="?", const="-", metavar="FILE", help="the whole document")
    add("--csv", nargs="?", const="-", metavar="FILE", help="the rows")
    add("--markdown", nargs="?", const="-", metavar="FILE", help="a page")
    add("--plot", metavar="FILE", help="time by size, .svg or .png")
    add("--osu-format", dest="format", action="store_const", const="osu", help="print")
    add(
        "--nccl-format", dest="format", action="store_const", const="nccl", help="print"
    )
    add("--plain", action="store_true", help="a table without colours")
    add("--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="status 1 when slower")
    add("--allow", type=float, default=0.05, help="what --compare lets pass [0.05]")


def run(args: argparse.Namespace) -> int:
    """Measure and show, or compare two documents."""
    if args.compare:
        before, after = (bench.read_document(path) for path in args.compare)
        verdicts = bench.compare(before, after, allowed=args.allow)
        print(bench.show_verdicts(verdicts))
        return int(any(v.is_regression for v in verdicts))
    if args.tests == ["hop"]:
        return _hop(args)
    if args.tests[:1] == ["transfer"]:
        return _transfer(args)
    if args.tests == ["weights"]:
        return _weights(args)
    if args.tests == ["experts"]:
        return _experts(args)
    task = task_of(args)
    if args.plot:
        bench.open_figure(args.plot)
    here = bench.under_launcher() and args.ranks is None
    if not here:
        _warn_of_load()
    with Progress(1) as progress:
        how = "here" if here else "auto"
        found = bench.run_task(task, partial(_say, progress), how=how)
    if not found:  # only rank 0 shows anything
        return 0
    command = ["stretto", *(shlex.quote(Path(a).name) for a in sys.argv[1:])]
    document = bench.document_of(task, found, command)
    _write(args, document)
    wrong = any(not row["ok"] and not row["refused"] for row in document["rows"])
    return int(wrong)


def _hop(args: argparse.Namespace) -> int:
    """Measure the way between hosts, beside a bare socket."""
    _warn_of_load()
    sizes = parse_sizes(args.sizes) if args.sizes else bench.HOP_SIZES
    rows = bench.measure_hop(sizes, carrier=args.carrier)
    if not rows:  # only rank 0 shows anything
        return 0
    if args.machine_file:
        text = bench.measured_machine(rows, args.ranks or _RANKS, args.hosts)
        Path(args.machine_file).write_text(text, encoding="utf-8")
    _show("bench hop", rows, args)
    return 0


def _transfer(args: argparse.Namespace) -> int:
    """Measure point to point: the words after `transfer` are schemes."""
    from stretto.bench import transfers

    _warn_of_load()
    how: dict[str, Any] = {"peers": [p for p in args.peers.split(",") if p]}
    if args.sizes:
        how["sizes"] = parse_sizes(args.sizes)
    if args.paths:
        how["paths"] = args.paths.split(",")
    if args.model:
        how["model"] = args.model
    rows, is_right = [], True
    for r in transfers.measure(args.tests[1:], **how):
        if isinstance(r, transfers.Refusal):
            sys.stderr.write(f"{r.who}, {r.path}: {r.why}\n")
            continue
        is_right = is_right and r.is_right
        rows.append(r.as_json())
    _show("bench transfer", rows, args)
    return int(not is_right)


def _weights(args: argparse.Namespace) -> int:
    """Measure a switch of weights between two processes of this host."""
    from stretto.bench import weights

    _warn_of_load()
    sizes = parse_sizes(args.sizes) if args.sizes else [64 << 20]
    rows = [row for nbytes in sizes for row in weights.measure(nbytes)]
    _show("bench weights", rows, args)
    return int(any(row["torn"] for row in rows))


def _experts(args: argparse.Namespace) -> int:
    """Measure dispatches and combines of experts; sizes are tokens of a rank."""
    from stretto.bench import experts

    _warn_of_load()
    try:
        shape = (
            [int(one) for one in args.shape.split(",")]
            if args.shape
            else [256, 8, 2048]
        )
        many, choices, hidden = shape
    except ValueError:
        raise CallError(f"--shape {args.shape}; want E,K,H, as 256,8,2048") from None
    tokens = parse_sizes(args.sizes) if args.sizes else experts.TOKENS
    rows = experts.measure(
        tuple(tokens), (many, choices, hidden), num_ranks=args.ranks or _RANKS,
        gloo="gloo" in args.peers or args.peers == "all", seed=args.seed,
    )  # fmt: skip
    _show("bench experts", rows, args)
    return int(not all(row["right"] for row in rows))


def _show(command: str, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print a table, or a JSON document where one is asked for."""
    document = json.dumps({"command": command, "rows": rows}, indent=2)
    if not args.json:
        print(table(rows))
    elif args.json == "-":
        print(document)
    else:
        Path(args.json).write_text(document + "\n", encoding="utf-8")


def _warn_of_load() -> None:
    """Say before anything is measured that it will not say much."""
    machine = bench.machine_of()
    if said := bench.load_warning(machine["load"], machine["cores"]):
        sys.stderr.write(f"{said}\n")


def _say(progress: Progress, said: str) -> None:
    """Show how far it is; that ranks start again is said in any case."""
    progress.step(said)
    if not said.startswith("[") and not sys.stderr.isatty():
        sys.stderr.write(said + "\n")
        sys.stderr.flush()


def task_of(args: argparse.Namespace) -> bench.BenchTask:
    """Return what is asked for."""
    tests = _tests(args)
    on_gpu = args.device == "cuda"
    ranks = args.ranks or bench.launched_ranks() or _RANKS
    if args.batch_us < 20:
        raise CallError(f"--batch-us {args.batch_us:g}; want at least 20, to be timed")
    whole = "all" in args.tests
    sizes = parse_sizes(args.sizes or (_ALL_SIZES if whole else _ONE_SIZES))
    names = tuple(name for name in args.peers.split(",") if name)
    traffic: tuple[tuple[float, ...], ...] = ()
    if args.traffic:
        traffic = tuple(tuple(r) for r in bench.read_matrix(args.traffic, ranks))
    of_rows = _ROW_BUDGET_S * len(tests) * len(sizes)
    budget = args.budget or (_ALL_BUDGET_S if whole else of_rows)
    return bench.BenchTask(
        tests=tests,
        sizes=tuple(sizes),
        num_ranks=ranks,
        peers=bench.expand(names, bench.Contender, lambda c: args.device in c.DEVICES),
        pins=tuple(pin.strip() for pin in args.algorithms.split(";") if pin.strip()),
        dtype=args.dtype or ("bfloat16" if on_gpu else "float32"),
        op=args.op,
        root=args.root,
        buffer=args.buffer or ("torch" if on_gpu else "numpy"),
        device=args.device,
        registered=args.registered,
        in_place=args.in_place,
        cold=args.cold,
        mode=args.mode,
        skew=args.skew,
        traffic=traffic,
        seed=args.seed,
        batch_us=args.batch_us * (20 if on_gpu else 1),
        batches=args.batches,
        budget_s=budget,
        options={"deadline_s": args.deadline} if args.deadline else {},
    )


def _tests(args: argparse.Namespace) -> tuple[str, ...]:
    if not args.tests:
        raise CallError("no test; want all, p2p, collectives, all_reduce, latency...")
    found: list[str] = []
    for name in args.tests:
        found += _GROUPS.get(name, (name,))
    return tuple(dict.fromkeys(found))


def _write(args: argparse.Namespace, document: dict[str, Any]) -> None:
    """Give the document in every form that was asked for; else show a table."""
    page, data = args.markdown, args.json
    task = document["task"]
    if "all" in args.tests and page is None and data is None:
        kind = "gpux" if task["device"] == "cuda" else "cpux"
        stem = Path("benchmarks/results") / f"bench_{kind}{task['num_ranks']}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        page, data = f"{stem}.md", f"{stem}.json"
    forms = ((data, bench.as_text), (args.csv, bench.as_csv), (page, bench.markdown))
    shown = False
    for path, form in forms:
        if path == "-":
            print(form(document), end="")
            shown = True
        elif path:
            Path(path).write_text(form(document), encoding="utf-8")
    if args.plot:
        bench.plot(document, args.plot)
    if args.format:
        print(_FORMATS[args.format](document))
    elif not shown:
        print(bench.show(document, rich=False if args.plain else None))
