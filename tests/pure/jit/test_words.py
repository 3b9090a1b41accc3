"""Words and C functions are declared once, and compiled code knows them by name."""

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import stretto
from stretto.fabric.jit.words import Words

PACKAGE = Path(stretto.__file__).parent
TREES = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}


class Three(Words):
    FIRST = 0
    SECOND = 1
    LAST = 5


def declared() -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield names of classes, with the words of each and their values."""
    for path, tree in TREES.items():
        for node in tree.body:
            is_class = isinstance(node, ast.ClassDef)
            if is_class and "Words" in map(ast.unparse, node.bases):
                yield f"{path}: {node.name}", words_of(path, node)


def words_of(path: Path, node: ast.ClassDef) -> list[tuple[str, int]]:
    """Return names and values; only where these are computed, by an import.

    Importing a module compiles its functions, which takes seconds.
    """
    said = [one for one in node.body if isinstance(one, ast.Assign)]
    try:
        return [(ast.unparse(o.targets[0]), ast.literal_eval(o.value)) for o in said]
    except ValueError:
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found = getattr(importlib.import_module(".".join(parts)), node.name)
        return [(n, int(word)) for n, word in found.__members__.items()]


def test_a_word_is_an_index_in_python_and_its_bytes_in_compiled_code() -> None:
    """`.at` is eight times the index in both, and a word is a number in both."""
    pytest.importorskip("numba")
    from stretto.fabric.jit.atomics import compiled

    @compiled("int64(int64)")
    def last_of(at: int) -> int:
        return at + Three.LAST.at + (1 if at == Three.SECOND else 0)

    assert [last_of(at) for at in (0, 1)] == [40, 42]
    assert [word.at for word in Three] == [0, 8, 40]


def test_no_two_words_lie_in_one_place() -> None:
    """No layout names a word twice, or out of order."""
    pytest.importorskip("numba")
    found = list(declared())
    assert len(found) > 10
    for name, words in found:
        values = [value for _, value in words]
        assert sorted(set(values)) == values, f"{name}: {words}"


def test_functions_of_c_are_declared_once() -> None:
    """Only libc.py declares them, and builtins.py by its `outside`, each name once."""
    names: Counter[str] = Counter()
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "ExternalFunction":
                assert path.name == "libc.py", f"{path} declares one by itself"
            is_call = path.parent.name == "jit" and isinstance(node, ast.Call)
            if is_call and ast.unparse(node.func) == "outside":
                names[ast.literal_eval(node.args[0])] += 1
    assert names["memcpy"] == 1
    assert set(names.values()) == {1}, names


def test_offsets_are_asked_of_the_words() -> None:
    """Nobody multiplies a word by eight by hand."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                left, right = ast.unparse(node.left), ast.unparse(node.right)
                kind = right.rpartition(".")[0].rpartition(".")[2].lstrip("_")
                assert left != "8" or not kind[:1].isupper(), (
                    f"{path}:{node.lineno}: {left} * {right}: `.at` says that"
                )
