"""Look for programs, configurations and policies; show, resume and compare searches."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stretto.cli.options import CommandParser
from stretto.cli.output import Progress, add_json, print_json, print_rows
from stretto.errors import CallError, ParseError, StrettoError
from stretto.registry import modules
from stretto.runtime.choice import parse_sizes

_DEADLINE_S = 60.0
_HOW = ("model", "jobs")
"""What a run keeps of how it was searched, beside the problem's arguments."""
_VERBS = ("list", "show", "resume", "replay", "compare")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    known = ", ".join(n.replace("_", "-") for n in modules("stretto.search.problems"))
    parser.add_argument(
        "what", metavar="WHAT", help=f"{', '.join(_VERBS)}; or a problem: {known}"
    )
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="what it needs: `stretto search WHAT --help`",
    )


def run(args: argparse.Namespace) -> int:
    """Search, or look at searches."""
    if args.what in _VERBS:
        return _VERB[args.what](args.rest)
    from stretto.search import kind_of, problem

    kind = kind_of(args.what)
    given = _parser(args.what, kind).parse_args(args.rest)
    if given.jobs and kind.apart:
        raise CallError(
            f"--jobs {given.jobs}: {args.what} judges in processes of its own, "
            "which others would disturb"
        )
    arguments = {
        name: _value(name, getattr(given, name))
        for name, one in inspect.signature(kind).parameters.items()
        if getattr(given, name) != one.default
    }
    made = problem(args.what, **arguments)
    return _search(args.what, made, given, {"name": args.what, **arguments})


def _value(name: str, value: Any) -> Any:
    """Return a value as problems take it: a size in bytes such as 1M as a number."""
    if name == "size" and isinstance(value, str) and value[-1:].upper() in "KMG":
        (found,) = parse_sizes(value)
        return found
    return value


def _parser(name: str, kind: Any) -> argparse.ArgumentParser:
    """Return the parser of a problem: what it needs, and what every search takes."""
    top = CommandParser(prog=f"stretto search {name}", description=kind.__doc__)
    for key, one in inspect.signature(kind).parameters.items():
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty:
            top.add_argument(key, metavar=key.upper(), help=_said(one.annotation))
            continue
        word = type(one.default)
        read = word if word in (int, float) and key != "size" else str
        if key == "size" and word is int:
            read = str
        top.add_argument(f"--{key.replace('_', '-')}", dest=key, type=read,
                         default=one.default, help=f"[{one.default}]")  # fmt: skip
    add = top.add_argument
    add("--evals", type=int, default=1000, help="candidates that are judged [1000]")
    add("--seed", type=int, default=0, help="the same finds the same [0]")
    add("--jobs", type=int, default=int(kind.isolated),
        help="child processes that judge, 0: this one does [%(default)s]")  # fmt: skip
    add(
        "--deadline",
        type=float,
        default=_DEADLINE_S,
        help="seconds of a verdict there [60]",
    )
    add("--islands", type=int, default=4, help="populations that search apart [4]")
    add("--db", default=":memory:", metavar="RUN", help="keep the search in this file")
    add("-o", "--out", metavar="FILE", help="write what is found there, as TOML")
    add("--llm", metavar="URL", help="also ask a model, behind this endpoint")
    add("--model", default="default", help="which one [default]")
    add("--budget", default="5usd", help="for the model: money, calls or tokens [5usd]")
    add_json(top)
    return top


def _said(annotation: Any) -> str:
    return str(annotation).replace("float | str", "such as 0.01 or 1%")


def _search(name: str, problem: Any, given: argparse.Namespace, told: Any) -> int:
    from stretto.search.evolve import SearchRun, Settings, search
    from stretto.search.found import spell

    settings = Settings(evals=given.evals, seed=given.seed, islands=given.islands)
    kept = SearchRun(given.db)
    asked, refusals = problem, None
    if given.llm:
        asked = _with_model(problem, given, kept)
        refusals = asked.refusals
    with Progress(given.evals) as progress:

        def tell(one: Any) -> None:
            progress.step(one.trial.text.replace("\n", "; ")[:60])

        told |= {"model": bool(given.llm), "jobs": given.jobs}
        kept.say(arguments=json.dumps(told, sort_keys=True, default=str))
        with _judges(told, given.seed, given.deadline) as judge:
            found = search(asked, settings, run=kept, judge=judge, told=tell)
    if given.out:
        extra = problem.extra(problem.parse(found.text))
        text = spell(name, found, seed=given.seed, extra=extra)
        Path(given.out).write_text(text, encoding="utf-8")
    alone = search(problem, settings).verdict.cost if given.llm else None
    _print(name, found, given, refusals, alone)
    kept.close()
    return 0


@contextlib.contextmanager
def _judges(told: Any, seed: int, deadline_s: float) -> Iterator[Any]:
    """Yield who judges: child processes, or None for this one."""
    problem = {k: v for k, v in told.items() if k not in ("name", *_HOW)}
    if not told.get("jobs"):
        yield None
        return
    from stretto.search.judges.children import Children

    jobs = int(told["jobs"])
    if not 1 <= jobs <= 256 or not deadline_s > 0:
        raise CallError(
            f"--jobs {jobs} --deadline {deadline_s:g}: want 0 to 256, above 0 s"
        )
    with Children(
        told["name"], problem, seed=seed, jobs=jobs, deadline_s=deadline_s
    ) as judge:
        yield judge


def _with_model(problem: Any, given: argparse.Namespace, kept: Any) -> Any:
    from stretto.search.evolve import PolicyProblem
    from stretto.search.model.endpoint import Endpoint
    from stretto.search.model.proposing import WithModel

    if not isinstance(problem, PolicyProblem):
        raise CallError("--llm: want a problem of policies, such as cache")
    return WithModel(
        problem, Endpoint(given.llm, given.model, budget=_budget(given.budget)), kept
    )


def _budget(text: str) -> Any:
    from stretto.search.model.endpoint import Allowance

    for word, key in {"usd": "money", "calls": "calls", "tokens": "tokens"}.items():
        number = text.removesuffix(word)
        if number != text and number.replace(".", "", key == "money").isdecimal():
            budget = Allowance()
            setattr(budget, key, float(number) if key == "money" else int(number))
            return budget
    raise CallError(f"--budget {text!r}: want such as 5usd, 100calls or 50000tokens")


def _print(
    name: str,
    found: Any,
    given: argparse.Namespace,
    refusals: Any = None,
    alone: float | None = None,
) -> None:
    if given.json:
        print_json({"command": "search", "problem": name, "found": found.text,
                    "cost": found.verdict.cost, "evals": found.evals,
                    "to_best": found.to_best, "held_out": found.held_out,
                    "first": found.first, "model": refusals,
                    "cost_without_model": alone})  # fmt: skip
        return
    print(f"{found.text}\n")
    print(f"cost {found.verdict.cost:.6g}, evaluation {found.to_best} of {found.evals}")
    for key, value in found.held_out.items():
        print(f"{key}: {value:.6g}, of the first {found.first.get(key, value):.6g}")
    if alone is not None:
        print(f"without the model, in as many evaluations: cost {alone:.6g}")
    for why, count in (refusals or {}).items():
        print(f"the model's answer was of no use {count} times: {why}")


def _list(rest: Sequence[str]) -> int:
    from stretto.search import kind_of, problems

    given = _plain("list", rest)
    rows = []
    for name in problems.names():
        try:
            kind = kind_of(name)
        except (StrettoError, ImportError) as e:
            rows.append({"problem": name, "needs": str(e)[:60]})
            continue
        needs = [
            key for key, one in inspect.signature(kind).parameters.items()
            if one.default is one.empty
        ]  # fmt: skip
        said = (kind.__doc__ or "").partition("\n")[0]
        rows.append({"problem": name, "needs": ", ".join(needs),
                     "missing": _missing(kind), "what": said})  # fmt: skip
    given.command = "search"
    print_rows(given, rows)
    return 0


def _missing(kind: Any) -> str:
    """Return what would make judges see more, or be quicker, if it is not there."""
    from stretto.fabric.jit import missing

    quick = "numba: runs, but some fifty times as slowly" if missing() else ""
    return "; ".join(said for said in (kind.lacks(), quick) if said)


def _plain(verb: str, rest: Sequence[str], *names: str) -> argparse.Namespace:
    top = CommandParser(prog=f"stretto search {verb}")
    for name in names:
        top.add_argument(name, metavar=name.upper())
    if verb == "show":
        top.add_argument("--c", action="store_true", help="a FILE.toml's policy as C")
        top.add_argument("--bpf", action="store_true", help="as C for a kernel's BPF")
    add_json(top)
    given = top.parse_args(rest)
    given.command = f"search {verb}"
    return given


def _open(path: str) -> Any:
    from stretto.search.evolve import SearchRun

    if not Path(path).is_file():
        raise ParseError(f"{path}: no such file of a search")
    return SearchRun(path)


def _show(rest: Sequence[str]) -> int:
    from stretto.search.evolve import progress

    given = _plain("show", rest, "run")
    if given.run.endswith(".toml"):
        return _show_policy(given)
    kept = _open(given.run)
    rows = kept.rows()
    said = kept.said
    refused = sum(bool(one.verdict.refused) for one in rows)
    title = (
        f"{said.get('problem')}, seed {said.get('seed')}: "
        f"{max((one.trial.number for one in rows), default=0)} of {said.get('evals')} "
        f"evaluations, {refused} refused"
    )
    best = [
        {"evaluation": one.trial.number, "cost": one.verdict.cost, "way": one.trial.way,
         "text": one.trial.text.replace("\n", "; ")}
        for one in progress(rows)
    ]  # fmt: skip
    print_rows(given, best, title)
    return 0


def _show_policy(given: argparse.Namespace) -> int:
    """Print a policy of a file, and with --c or --bpf what a compiler takes."""
    from stretto.search import load

    found = load(given.run)
    code = found.as_c(kernel=given.bpf) if given.c or given.bpf else ""
    if given.json:
        print_json({"command": "search show", "problem": found.problem,
                    "found": found.text, "code": code})  # fmt: skip
        return 0
    print(code or found.text)
    return 0


def _again(verb: str, rest: Sequence[str]) -> tuple[argparse.Namespace, Any, Any]:
    """Return a run, and the problem that it says."""
    from stretto.search import PolicyProblem, problem
    from stretto.search.model.proposing import WithModel

    given = _plain(verb, rest, "run")
    kept = _open(given.run)
    try:
        told = json.loads(kept.said["arguments"])
        asked = told.get("model", False)
        given.told = dict(told)
        name = told.pop("name")
        made = problem(name, **{k: v for k, v in told.items() if k not in _HOW})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ParseError(f"{given.run}: it does not say what was searched") from None
    if asked and isinstance(made, PolicyProblem):  # answers are kept in the run
        made = WithModel(made, None, kept)
    return given, kept, made


def _resume(rest: Sequence[str]) -> int:
    from stretto.search.evolve import search

    given, kept, made = _again("resume", rest)
    settings = kept.settings
    with _judges(given.told, settings.seed, _DEADLINE_S) as judge:
        found = search(made, settings, run=kept, judge=judge)
    _print(made.name, found, given)
    return 0


def _replay(rest: Sequence[str]) -> int:
    from stretto.search import replay

    given, kept, made = _again("replay", rest)
    differ = replay(made, kept)
    rows = [{"verdicts": len(kept.rows()), "differ": differ}]
    print_rows(given, rows)
    return int(differ > 0)


def _compare(rest: Sequence[str]) -> int:
    from stretto.search.evolve import progress

    given = _plain("compare", rest, "first", "second")
    marks = (10, 30, 100, 300, 1000, 3000, 10000)
    runs = {path: _open(path).rows() for path in (given.first, given.second)}
    rows = []
    for mark in marks:
        row: dict[str, Any] = {"evaluations": mark}
        for path, every in runs.items():
            if every and mark <= max(one.trial.number for one in every):
                few = [one for one in progress(every) if one.trial.number <= mark]
                row[path] = few[-1].verdict.cost if few else None
        if len(row) > 1:
            rows.append(row)
    print_rows(given, rows, "the least cost after so many evaluations")
    return 0


_VERB = {
    "list": _list, "show": _show, "resume": _resume, "replay": _replay,
    "compare": _compare,
}  # fmt: skip
