"""The rooms: who imports whom, what each offers, how large its files are."""

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.meta.trees import tree

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stretto"
MODULES = sorted(SOURCE.rglob("*.py"))
FACADES = [path for path in MODULES if path.name == "__init__.py"]
PROGRAMS = sorted(
    path
    for folder in ("benchmarks", "docs", "examples", "scripts", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
GROUPS = ("compiler", "fabric", "program", "runtime")
MOST_NAMES_TWICE = 15
MOST_LINES = 400
MOST_OF_A_FUNCTION = 60
LONGER: dict[str, str] = {  # path below src/stretto: why it may be longer
    "topology/traffic/engine.py": "packets: every part calls others, compiled as one",
}
EXCUSED = {SOURCE / name for name in LONGER}
TOUR = (
    "program/algorithms/all_reduce_two_shot.py",
    "program/ir/program.py",
    "compiler/verify/promise.py",
    "compiler/lower/pipeline.py",
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
    for node in tree(path).body:
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
    for node in ast.walk(tree(path)):
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
    assert "stretto.compiler.plan" in graph["stretto.compiler.lower.pipeline"]


def sends(path):
    """Return whether a module gives bytes to a socket, HTTP or another's memory."""
    uses_sockets = "import socket" in path.read_text(encoding="utf-8")
    for node in ast.walk(tree(path)):
        match node:
            case ast.Call(func=ast.Attribute(attr="send" | "sendall" | "sendmsg")):
                if uses_sockets:
                    return True
            case ast.ImportFrom(module="stretto.fabric.jit.libc", names=names):
                if {"send", "sendmsg", "process_vm_writev"} & {n.name for n in names}:
                    return True
            case ast.Import(names=[ast.alias(name="http.client" | "http.server")]):
                return True
            case ast.ImportFrom(
                module="http.client" | "http.server" | "urllib.request"
            ):
                return True
    return False


def test_bytes_leave_where_the_page_says():
    """Each module that sends is named there, or its folder is."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    said = page.partition("Bytes leave a process here")[2].partition("## ")[0]
    named_there = re.findall(r"`([a-z_/]+(?:\.py)?)`", said)
    found = {named(path) for path in MODULES if sends(path)}

    assert "fabric/wire.py" in found
    assert [] == sorted(m for m in found if not m.startswith(tuple(named_there)))
    assert [] == [n for n in named_there if "/" in n and not (SOURCE / n).exists()]


MECHANISMS = {  # what only the fabric has, by the words that make one
    "a loop": ("selectors.", "select.poll(", "select.epoll(", "select.select("),
    "a thread": ("threading.Thread(",),
    "a door": ("socket.socket(", "create_server(", ".listen("),
    "a handshake": ("hmac.", "wrap_socket(", "compare_digest("),
    "a registry": ("iter_modules", "entry_points("),
    "shared memory": ("memfd_create", "mmap.mmap(", "SharedMemory("),
    "a scan": (".iterdir()", ".glob(", "os.scandir("),
}
ABOVE = ("elastic", "experts", "network", "rl", "search", "serve", "training")
ABOVE += ("torch/elastic", "weights")
OWN = {
    ("elastic/job.py", "a door"): "of torch's store: torch serves it",
}


def test_rooms_above_the_fabric_have_no_mechanism_of_their_own():
    """Loops, threads, doors, handshakes, registries, memory and scans are below."""
    found = set()
    for path in MODULES:
        if named(path).startswith(tuple(f"{room}/" for room in ABOVE)):
            text = path.read_text(encoding="utf-8")
            found |= {
                (named(path), what)
                for what, words in MECHANISMS.items()
                if any(word in text for word in words)
            }

    assert OWN.keys() == found


def rooms_of_classes():
    """Return, by the name of each public class, the rooms that define one."""
    found = defaultdict(set)
    for path in MODULES:
        parts = path.relative_to(SOURCE).parts
        room = parts[: 2 if parts[0] in GROUPS else 1]
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(room)
    return found


def test_a_class_name_means_one_thing():
    """But for few, which the glossary tells apart."""
    twice = {name for name, rooms in rooms_of_classes().items() if len(rooms) > 1}
    page = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| ([A-Z]\w+) \|", page.partition("| name |")[2], re.MULTILINE)

    assert said == sorted(twice)
    assert len(said) <= MOST_NAMES_TWICE


def test_a_room_of_a_group_has_its_own_name_for_users():
    """`stretto.verify` is what `stretto.compiler.verify` offers, and no more."""
    rooms = {
        path.parent.name: module_name(path)
        for group in ("compiler", "program")
        for path in (SOURCE / group).glob("*/__init__.py")
    }
    del rooms["elements"], rooms["rewrite"]  # users have `collectives`, and plans ask
    del rooms["weaves"]  # users have `stretto search fused` and `torch.woven`
    rooms["hop"] = "stretto.fabric.hop"
    short = {room: importlib.import_module(f"stretto.{room}") for room in rooms}
    whole = {room: importlib.import_module(name) for room, name in rooms.items()}

    assert set(rooms) <= {path.stem for path in SOURCE.glob("*.py")}
    for room, module in whole.items():
        assert module.__all__ == short[room].__all__
        for name in module.__all__:
            assert getattr(module, name) is getattr(short[room], name)


def unlisted(path):
    """Yield what is wrong with the names that a facade lists."""
    module = importlib.import_module(module_name(path))
    listed = list(getattr(module, "__all__", []))
    defined = {name for name in public_definitions(path) if not name.startswith("_")}
    if listed != sorted(listed, key=isort_order):
        yield "not sorted"
    yield from (f"{name} is not there" for name in listed if not hasattr(module, name))
    yield from (f"{name} is not listed" for name in defined - set(listed))


def test_facades_list_all_they_offer():
    """`__all__` is sorted, importable, and leaves out no public name."""
    wrong = {named(path): list(unlisted(path)) for path in FACADES}

    assert {} == {path: what for path, what in wrong.items() if what}


def test_what_a_facade_imports_late_has_not_the_name_of_a_module():
    """Importing that module, wherever, would put it in the place of the name."""
    modules = {(path.parent, path.stem) for path in MODULES}
    modules |= {(path.parent.parent, path.parent.name) for path in FACADES}
    found = {
        f"{module_name(path)}.{name}": (path.parent, name) in modules
        for path in FACADES
        for name in getattr(importlib.import_module(module_name(path)), "_HOMES", ())
    }

    assert len(found) > 20
    assert [] == [name for name, is_module in found.items() if is_module]


def test_modules_say_what_they_are():
    """The first line of every module is a sentence."""
    docstrings = {path: ast.get_docstring(tree(path)) or "" for path in MODULES}
    first = {named(path): text.partition("\n")[0] for path, text in docstrings.items()}
    sentence = re.compile(r"[A-Za-z0-9`].*[.:]")

    assert {} == {
        path: text for path, text in first.items() if not sentence.fullmatch(text)
    }


def long_functions(path):
    """Return the functions of a file that are longer than they may be."""
    text = path.read_text()
    if text.count("\n") <= MOST_OF_A_FUNCTION:
        return []
    return [
        f"{path.name}:{node.lineno} {node.name}: {length}"
        for node in statements(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := node.end_lineno - node.lineno + 1) > MOST_OF_A_FUNCTION
    ]


def statements(node):
    """Yield all statements in a tree, and not what they are made of."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.expr):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from statements(inner)


def test_modules_can_be_read_at_one_sitting():
    """None, nor a test or a program, is longer than 400 lines unless it says why.

    No function is longer than 60.
    """
    every = [path for path in (*MODULES, *PROGRAMS) if path not in EXCUSED]
    sizes = {path: len(path.read_text().splitlines()) for path in every}

    assert {} == {path: n for path, n in sizes.items() if n > MOST_LINES}
    assert [] == [
        long for path in (*MODULES, *PROGRAMS) for long in long_functions(path)
    ]


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
import stretto.program.algorithms
assert stretto.program.algorithms.names()
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
