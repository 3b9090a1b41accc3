"""Run many jobs on one cluster, fit their circles, or write a trace of jobs."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

from stretto.cli.output import Progress, add_json, print_json, print_rows, table
from stretto.errors import CallError
from stretto.trace import write

__all__ = ["add_arguments", "run"]

_MACHINE = "leaf_spine6x4"
_MOST_SEEDS = 1000
_MOST_SERVERS, _MOST_LOAD = 1000, 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    one = actions.add_parser("run", help="run jobs under schedulers, beside ideal")
    _add_jobs(one)
    one.add_argument(
        "--scheduler",
        default="packed,packed+cassini",
        metavar="NAMES",
        help="of `stretto cluster list` [packed,packed+cassini]",
    )
    one.add_argument("--seed", type=int, default=0, help="the first [0]")
    one.add_argument("--seeds", type=int, default=1, help="how many runs [1]")
    one.add_argument(
        "--jitter", type=float, default=-1.0, help="of all computing [each job's]"
    )
    one.add_argument("--jobs", action="store_true", help="a line for every job, too")
    one.add_argument(
        "--trace", metavar="FILE", help="write the last run for `stretto studio`"
    )
    add_json(one)
    one = actions.add_parser("shifts", help="scores and shifts of jobs at their places")
    _add_jobs(one)
    one.add_argument("--exact", action="store_true", help="the best there are, beside")
    one.add_argument("--svg", metavar="FILE", help="draw the circles of links")
    add_json(one)
    one = actions.add_parser("trace", help="write a trace of jobs, from a seed")
    one.add_argument("output", metavar="FILE", help="a .toml file to write")
    one.add_argument("--machine", default=_MACHINE, help=f"[{_MACHINE}]")
    one.add_argument("--kind", default="poisson", help="poisson or burst [poisson]")
    one.add_argument("--load", type=float, default=0.9, help="of all ranks [0.9]")
    one.add_argument("--hours", type=float, default=1.0, help="[1]")
    one.add_argument("--mean", type=float, default=300.0, help="seconds of a job [300]")
    one.add_argument("--jitter", type=float, default=0.01, help="of computing [0.01]")
    one.add_argument("--seed", type=int, default=0, help="[0]")
    add_json(one)
    one = actions.add_parser("dags", help="jobs that are graphs of tasks, by Graphene")
    one.add_argument("file", metavar="DAGS", nargs="?", help="a .json file [generated]")
    one.add_argument("--servers", type=int, default=1, help="[1]")
    one.add_argument("--load", type=float, default=1.0, help="of generated ones [1]")
    one.add_argument("--seed", type=int, default=0, help="of generated ones [0]")
    add_json(one)
    one = actions.add_parser("partial", help="partial back-propagation, by JigSaw")
    one.add_argument("--workers", type=int, default=4, help="of a job [4]")
    one.add_argument("--ranks", type=int, default=16, help="of the cluster [16]")
    one.add_argument("--seed", type=int, default=0, help="of 12 jobs [0]")
    add_json(one)
    one = actions.add_parser("list", help="schedulers and profiles")
    add_json(one)


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="JOBS", help="a .toml file, or a .csv log")
    parser.add_argument(
        "--machine", default=_MACHINE, help=f"of `stretto list` [{_MACHINE}]"
    )


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    return _ACTIONS[args.action](args)


def _run(args: argparse.Namespace) -> int:
    from stretto.network import Cluster, cluster, jobs, schedulers

    if not 1 <= args.seeds <= _MOST_SEEDS:
        raise CallError(f"--seeds {args.seeds}: want 1 to {_MOST_SEEDS}")
    if args.jitter > 1:
        raise CallError(f"--jitter {args.jitter:g}: want 0 to 1")
    given = jobs.read(args.file)
    if args.jitter >= 0:
        given = tuple(dataclasses.replace(job, jitter=args.jitter) for job in given)
    names = args.scheduler.split(",")
    for name in names:
        schedulers.find(name)
    where = Cluster(args.machine)
    prepared = where.prepared(given)
    seeds = range(args.seed, args.seed + args.seeds)
    rows, lines = [], []
    last = None
    with Progress(len(names) * args.seeds) as progress:
        for name in names:
            runs = []
            for seed in seeds:
                progress.step(f"{len(given)} jobs under {name}, seed {seed}")
                events = bool(args.trace) and name == names[-1] and seed == seeds[-1]
                last = where.run(given, scheduler=name, seed=seed, events=events)
                runs.append(last)
            rows.append(cluster.mean_row(runs))
            lines += [{"scheduler": name, **row} for row in runs[-1].rows()]
    best = [cluster.ideal(prepared, machine=args.machine, seed=s) for s in seeds]
    rows.append(cluster.mean_row(best))
    if args.trace and last:
        write(args.trace, last.trace())
    if args.json:
        document: dict[str, Any] = {"command": "cluster", "rows": rows}
        print_json(document | ({"jobs": lines} if args.jobs else {}))
        return 0
    print(
        f"{len(given)} jobs on {args.machine}, {args.seeds} seeds; marks are modelled"
    )
    print(table(rows))
    if args.jobs:
        print(f"\nby job, seed {seeds[-1]}\n{table(lines)}")
    return 0


def _shifts(args: argparse.Namespace) -> int:
    from stretto.network import Cluster, cassini, jobs

    where = Cluster(args.machine)
    plan = where.shifts(jobs.read(args.file))
    rows, links = [], []
    for index, group in enumerate(plan.groups):
        circle = group.fit.problem.circle
        best = cassini.exact(group.fit.problem) if args.exact else None
        for i, name in enumerate(group.names):
            shift, period = group.slots_ms(i)
            rows.append(
                {
                    "group": index,
                    "job": name,
                    "shift_ms": shift,
                    "period_ms": period,
                    "turns": circle.turns[i],
                }
            )
        before = cassini.score(group.fit.problem, dict.fromkeys(group.fit.parts, 0))
        for link, found in group.fit.scores.items():
            row: dict[str, Any] = {
                "group": index,
                "link": where.machine.links[link].name,
                "jobs": len(group.fit.problem.asks[link]),
                "circle_ms": circle.perimeter_ms,
                "rounded": circle.stretch,
                "score_at_0": before.scores[link],
                "score": found,
            }
            if best:
                row |= {"exact": best[0].scores[link], "proved": best[1]}
            links.append(row)
    if args.svg:
        text = cassini.svg(where.machine, plan)
        Path(args.svg).write_text(text, encoding="utf-8")
    if args.json:
        print_json(
            {"command": "cluster", "score": plan.score, "rows": rows, "links": links}
        )
        return 0
    print(f"score {plan.score:.3f} of {len(links)} links that are too narrow for all")
    if links:
        print(f"{table(links)}\n\n{table(rows)}")
    return 0


def _trace(args: argparse.Namespace) -> int:
    from stretto.network import jobs
    from stretto.topology import load

    if not args.output.endswith(".toml"):
        raise CallError(f"{args.output}: want a .toml file")
    machine = load(args.machine)
    made = jobs.generate(
        servers=machine.num_ranks,
        load=args.load,
        hours=args.hours,
        seed=args.seed,
        kind=args.kind,
        jitter=args.jitter,
        mean_s=args.mean,
    )
    if not made:
        raise CallError(f"--hours {args.hours:g}: no job came; want more")
    jobs.write(made, args.output)
    row = {
        "file": args.output,
        "jobs": len(made),
        "iterations": sum(job.iterations for job in made),
        "hours": made[-1].arrives_ms / 3.6e6,
    }
    print_rows(args, [row])
    return 0


def _dags(args: argparse.Namespace) -> int:
    from stretto.network import dags

    if not 1 <= args.servers <= _MOST_SERVERS:
        raise CallError(f"--servers {args.servers}: want 1 to {_MOST_SERVERS}")
    if not 0 < args.load <= _MOST_LOAD:
        raise CallError(f"--load {args.load:g}: want above 0, at most {_MOST_LOAD}")
    if args.file:
        given = dags.read_dags(args.file)
    else:
        given = dags.loaded(50, servers=args.servers, load=args.load, seed=args.seed)
    found = {by: dags.online(given, servers=args.servers, by=by) for by in dags.KEYS}
    rows = []
    for by, took in found.items():
        faster = [1 - took[d.name] / found["fair"][d.name] for d in given]
        rows.append(
            {
                "order": by,
                "completion_ms": statistics.mean(took.values()),
                "median_ms": statistics.median(took.values()),
                "median_faster_than_fair": statistics.median(faster),
                "worst": min(faster),
            }
        )
    least = statistics.mean(dag.bound_ms(args.servers) for dag in given)
    rows.append({"order": "ideal", "completion_ms": least})
    print_rows(args, rows, f"{len(given)} graphs on {args.servers} servers")
    return 0


def _partial(args: argparse.Namespace) -> int:
    from stretto.network import jigsaw

    jobs = jigsaw.some_jobs(12, workers=args.workers, seed=args.seed)
    whole, partial = jigsaw.efficiency(jobs, ranks=args.ranks)
    row = {
        "jobs": len(jobs),
        "workers": args.workers,
        "ranks": args.ranks,
        "whole": whole,
        "partial": partial,
        "more_iterations": partial / whole - 1,
        "rank_time_saved": 1 - whole / partial,
    }
    print_rows(args, [row], "work done in the time of all ranks")
    return 0


def _list(args: argparse.Namespace) -> int:
    from stretto.network import jobs, schedulers

    named = [{"scheduler": n, "about": schedulers.about(n)} for n in schedulers.names()]
    models = []
    for name in jobs.names():
        found = jobs.profile(name)
        once = found.job(name, iterations=1)
        models.append(
            {
                "profile": name,
                "workers": found.workers,
                "iteration_ms": once.period_ms,
                "about": found.about,
                "assumed": ", ".join(found.assumed),
            }
        )
    if args.json:
        print_json({"command": "cluster", "schedulers": named, "profiles": models})
        return 0
    print(table(named))
    print("\nNAME+cassini puts CASSINI behind one; `ideal` is in every table\n")
    print(table(models))
    return 0


_ACTIONS = {
    "run": _run,
    "shifts": _shifts,
    "trace": _trace,
    "dags": _dags,
    "partial": _partial,
    "list": _list,
}
