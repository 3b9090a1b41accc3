"""The rooms: who imports whom, what each offers, how large its files are."""

import ast
import importlib
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stretto"
MODULES = sorted(SOURCE.rglob("*.py"))
FACADES = [path for path in MODULES if path.name == "__init__.py"]
PROGRAMS = sorted(
    path
    for folder in ("benchmarks", "docs", "examples", "scripts", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
MOST_LINES = 400
MOST_OF_A_FUNCTION = 60
LONGER: dict[str, str] = {}  # path below src/stretto: why it may be longer
TOUR = (
    "algorithms/all_reduce_two_shot.py",
    "ir/program.py",
    "verify/promise.py",
    "lower/pipeline.py",
    "executors/sim/simulator.py",
)
# What no machine but Linux has, and what no empty environment has.
ABSENT = "fcntl grp pwd resource termios cuda hypothesis matplotlib ml_dtypes mpi4py"
ABSENT += " numba ortools rich scipy torch"
PORTABLE = "algorithms cli lang lower executors.sim testing verify"


def named(path):
    return path.relative_to(SOURCE).as_posix()


def module_name(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def public_definitions(path):
    """Return what a module defines, or brings in from its own room."""
    own = module_name(path) + "."
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.ImportFrom(module=module, names=names) if (
                path.name == "__init__.py" and (module or "").startswith(own)
            ):
                yield from (alias.asname or alias.name for alias in names)


def imported(path, modules):
    """Yield which of some modules a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                longer = [f"{module}.{alias.name}" for alias in names]
                found = [name if name in modules else module for name in longer]
            case _:
                continue
        yield from (name for name in found if name in modules)


def isort_order(name):
    """Constants, then classes, then the rest, as the linter sorts."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_no_modules_import_one_another_in_a_circle():
    """Not inside a room either. Imports for types count: readers follow them, too."""
    modules = {module_name(path): path for path in MODULES}
    graph = {
        name: set(imported(path, modules)) - {name} for name, path in modules.items()
    }
    circle = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        circle = e.args[1]

    assert [] == circle
    assert "stretto.plan" in graph["stretto.lower.pipeline"]


@pytest.mark.parametrize("path", FACADES, ids=named)
def test_a_facade_lists_all_it_offers(path):
    """`__all__` is sorted, importable, and leaves out no public name."""
    module = importlib.import_module(module_name(path))
    listed = getattr(module, "__all__", [])
    defined = {name for name in public_definitions(path) if not name.startswith("_")}

    assert sorted(listed, key=isort_order) == list(listed)
    assert [] == [name for name in listed if not hasattr(module, name)]
    assert set() == defined - set(listed)


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_says_what_it_is(path):
    """The first line of every module is a sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = docstring.partition("\n")[0]

    assert re.fullmatch(r"[A-Za-z0-9`].*[.:]", first), f"{named(path)}: {first!r}"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_can_be_read_at_one_sitting(path):
    """No module is longer than 400 lines unless it says why."""
    lines = len(path.read_text().splitlines())

    assert lines <= MOST_LINES or named(path) in LONGER, f"{named(path)}: {lines} lines"


def long_functions(path):
    """Return the functions of a file that are longer than they may be."""
    return [
        f"{path.name}:{node.lineno} {node.name}: {length}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := node.end_lineno - node.lineno + 1) > MOST_OF_A_FUNCTION
    ]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_function_can_be_read_at_one_glance(path):
    """No function is longer than 60 lines."""
    assert [] == long_functions(path)


def test_tests_and_programs_are_as_short_as_modules():
    """What is beside the library is read by people, too."""
    sizes = {path: len(path.read_text().splitlines()) for path in PROGRAMS}

    assert {} == {path: n for path, n in sizes.items() if n > MOST_LINES}
    assert [] == [long for path in PROGRAMS for long in long_functions(path)]


def test_only_modules_that_are_too_long_are_excused():
    """The list of exceptions does not outlive its reasons."""
    sizes = {name: len((SOURCE / name).read_text().splitlines()) for name in LONGER}

    assert {} == {name: n for name, n in sizes.items() if n <= MOST_LINES}


def test_the_tour_stays_under_a_thousand_lines():
    """The five files of docs/tour.md can be read in an evening."""
    lines = [len((SOURCE / name).read_text().splitlines()) for name in TOUR]

    assert sum(lines) < 1000, dict(zip(TOUR, lines, strict=True))


def test_the_portable_rooms_import_anywhere():
    """`lang`, `verify` and the simulator need NumPy and nothing that only Linux has."""
    code = f"""
import importlib, sys
for name in {ABSENT!r}.split():
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
for room in {PORTABLE!r}.split():
    importlib.import_module("stretto." + room)
import stretto.algorithms
assert stretto.algorithms.names()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
