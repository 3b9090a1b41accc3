"""What is written in the repository: errors, tests, paths, changelog."""

import ast
import re
import subprocess
from pathlib import Path

from tests.meta.trees import tree

from stretto import errors

ROOT = Path(__file__).parents[2]
MOST_OF_A_SUMMARY = 64 << 10
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
# Spelled in pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.~}*])/(?:work|root|Users" + r"|home)/\w")
HOSTS = re.compile(r"(?:pypi|pythonhosted|pytorch|npmjs|anaconda)" + r"\.(?:org|com)\b")


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def texts():
    for path in tracked():
        if path.is_file():
            try:
                yield path.relative_to(ROOT).as_posix(), path.read_text()
            except UnicodeDecodeError:
                continue


def raised_with_text():
    """Yield the classes in `pytest.raises(CLASS, match=...)` of all tests."""
    for path in TESTS:
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(func=ast.Attribute(attr="raises"), args=[kind, *_]) if (
                    any(keyword.arg == "match" for keyword in node.keywords)
                ):
                    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
                    for one in kinds:
                        yield ast.unparse(one).rpartition(".")[2]


def ends(kind):
    """Yield the error classes below a class that have no subclasses."""
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from ends(child) if child.__subclasses__() else [child]


def test_every_error_is_matched_by_its_text():
    """Each kind of error is raised in some test that reads its message."""
    matched = set(raised_with_text())

    assert set() == {kind.__name__ for kind in ends(errors.StrettoError)} - matched


def test_every_error_is_exported():
    """The tree of errors is public, all of it."""
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.StrettoError)
    }

    assert defined == set(errors.__all__)


def test_tests_state_truths():
    """Every test has a docstring that says what holds."""
    mute = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in TESTS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]

    assert [] == mute


def test_nothing_names_a_machine_or_a_host():
    """No file knows where it was written or whence packages come."""
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line) or HOSTS.search(line)
    ]

    assert [] == found


def test_code_is_ascii():
    """Source and tests hold ASCII only, so that every diff can be read anywhere."""
    found = [
        name
        for name, text in texts()
        if name.endswith((".py", ".cuh", ".cu", ".toml")) and not text.isascii()
    ]

    assert [] == found


def test_results_are_tables_figures_and_summaries():
    """What was sampled on the way stays where it was measured."""
    sizes = {
        path.name: path.stat().st_size
        for path in tracked()
        if path.parent.name == "results" and path.suffix == ".json" and path.is_file()
    }

    assert sizes
    assert {} == {name: n for name, n in sizes.items() if n > MOST_OF_A_SUMMARY}


def test_no_benchmark_prints_a_function_for_what_it_returns():
    """`{commit}` where `commit` is imported is a function's name, not a commit."""
    wrong = []
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imported = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in nodes:
            match node:
                case ast.FormattedValue(value=ast.Name(id=name)) if (
                    name in imported and name.islower()
                ):
                    wrong.append(f"{path.name}: {{{name}}}")

    assert not wrong


def test_changelog_fragments_are_named_for_what_they_say():
    """A fragment is called ID.added.md, .changed.md, .fixed.md or .removed.md."""
    names = [path.name for path in (ROOT / "changelog.d").glob("*.md")]
    form = re.compile(r"\w+\.(added|changed|fixed|removed)\.md")

    assert [] == [name for name in names if not form.fullmatch(name)]


def test_every_golden_file_has_a_test():
    """A golden file whose test has gone is removed with it."""
    tests = {
        (path.parent.name, node.name.removeprefix("test_"))
        for path in TESTS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    # A test may name its files: golden(text, f"lower/{name}.txt").
    naming = {path.parent.name for path in TESTS if "golden(" in path.read_text()} & {
        room for path in TESTS for room in re.findall(r'f"(\w+)/\{', path.read_text())
    }
    orphans = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests" / "golden").glob("*/*.txt")
        if path.parent.name not in naming
        and (path.parent.name, path.stem.partition("-")[0]) not in tests
    ]

    assert [] == orphans
