"""The language of policies: printed and read again, and a value for every term."""

import ctypes
import math
import random
import shutil
import subprocess

import numpy as np
import pytest

from stretto.errors import ParseError, StrettoError
from stretto.search import language, load
from stretto.search.language import (
    CHANGES,
    NUMBER,
    OPERATORS,
    TRUTH,
    Form,
    Policy,
    as_bpf,
    as_c,
    changed,
    code_of,
    evaluate,
    grown,
    kind_of,
    parse,
    spell,
    value_of,
)

FEATURES = ("age", "count", "size")
FORM = Form(FEATURES)
TWO = Form(
    FEATURES, kinds={"keep": TRUTH, "score": NUMBER}, defaults={"keep": "age < 1"}
)
ODD = (0.0, 1.0, -1.0, 0.5, 1e-12, 1e6, -1e6, 1e200, -1e200, 1e300, 3.0, math.pi)


def terms(count, seed=0, depth=6):
    rng = random.Random(seed)
    return [grown(FORM, rng.choice((NUMBER, TRUTH)), depth, rng) for _ in range(count)]


def written_out(term, row):
    """Return a term's value by the definition: nothing of the machine."""
    if term.op == "number":
        return term.value
    if term.op == "feature":
        return row[FEATURES.index(term.name)]
    a, *more = (written_out(arg, row) for arg in term.args)
    b = more[0] if more else None
    value = {
        "or": lambda: bool(a) or bool(b), "and": lambda: bool(a) and bool(b),
        "not": lambda: not a, "lt": lambda: a < b, "le": lambda: a <= b,
        "gt": lambda: a > b, "ge": lambda: a >= b, "add": lambda: a + b,
        "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b if b else 0.0,
        "neg": lambda: -a, "min": lambda: min(a, b), "max": lambda: max(a, b),
        "log": lambda: math.copysign(math.log(1 + abs(a)), a) if a else 0.0,
        "where": lambda: more[0] if a else more[1],
    }[term.op]()  # fmt: skip
    return min(1e300, max(-1e300, float(value)))


def rows(count, seed=1):
    rng = random.Random(seed)
    return np.array([[rng.choice(ODD) for _ in FEATURES] for _ in range(count)])


def test_what_is_printed_is_read_again():
    """What is printed is read again."""
    for term in terms(2000):
        assert parse(spell(term), FEATURES) == term
        assert parse(spell(term), FEATURES, kind=kind_of(term)).digest == term.digest


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("1 - 2 - 3", -4), ("8 / 4 / 2", 1),
        ("-2 * 3", -6), ("-(2)", -2), ("2 - -3", 5), ("-log(0)", 0), (".5 + 1e1", 10.5),
        ("where(1 < 2 and not 2 < 1, 3, 4)", 3), ("where(1 > 2 or 2 >= 2, 3, 4)", 3),
        ("min(1, max(2, 3))", 1), ("1 / 0", 0), ("1e300 * 1e300", 1e300),
        ("1e300 * 1e300 - 1e300 * 1e300", 0), ("-1e300 * 1e300", -1e300),
    ],
)  # fmt: skip
def test_texts_mean_what_they_say(text, meant):
    """Texts mean what they say."""
    assert evaluate(code_of(parse(text, ()), ()), np.zeros((1, 0)))[0] == meant


def test_the_machine_gives_the_values_of_the_definition():
    """The machine gives the values of the definition."""
    inputs = rows(12)
    for term in terms(400):
        code = code_of(term, FEATURES)
        stack, plain = [0.0] * 32, (code.words.tolist(), code.values.tolist())
        for row, value in zip(inputs, evaluate(code, inputs), strict=True):
            assert math.isfinite(value)
            assert value == pytest.approx(
                written_out(term, row.tolist()), rel=1e-12, abs=0
            )
            assert value == value_of.py_func(*plain, row.tolist(), stack)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "want a term"), ("1 +", "want a term"), ("(1", "want '\\)'"),
        ("1 2", "after the end"), ("agee", "did you mean age"), ("sqrt(1)", "operator"),
        ("min(1)", "want number, number"), ("1 < 2 < 3", "want number, number"),
        ("where(1, 2, 3)", "want truth"), ("not 1", "want truth"), ("1e999", "up to"),
        ("1 ; 2", "means nothing"), ("__import__('os')", "means nothing|operator"),
        ("age.count", "means nothing"), ("1" * 5000, "at most 4096"),
        ("(" * 1000 + "1", "inside one"), ("-" * 1000 + "1", "inside one"),
        ("+".join(["1"] * 300), "inside one another|at most"),
        ("log(" * 30 + "1" + ")" * 30, "inside one"), ("\u0661", "means nothing"),
        ("min(" + "min(1,1)," * 400, "at most|want"), ("age = 1", "means nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_words(text, said):
    """What cannot be read is refused in words."""
    with pytest.raises(StrettoError, match=said):
        parse(text, FEATURES)


def test_any_text_is_read_or_refused():
    """Any text is read or refused."""
    rng = random.Random(3)
    words = [
        *FEATURES,
        *OPERATORS,
        *"+-*/<>(),=.;'\"\\\n",
        "1",
        "1e9",
        " and ",
        " not ",
        "\0",
    ]
    for _ in range(5000):
        text = "".join(rng.choice(words) for _ in range(rng.randrange(1, 30)))
        try:
            term = parse(text, FEATURES)
        except StrettoError:
            continue
        assert parse(spell(term), FEATURES) == term


@pytest.mark.parametrize("change", CHANGES)
def test_changes_make_terms_of_the_same_kinds_that_can_be_read(change):
    """Changes make terms of the same kinds that can be read."""
    rng = random.Random(5)
    parents = [
        Policy(
            (("keep", grown(TWO, TRUTH, 4, rng)), ("score", grown(TWO, NUMBER, 4, rng)))
        )
        for _ in range(40)
    ]
    others = 0
    for _ in range(300):
        made = changed(TWO, change, rng.sample(parents, 2), rng)
        assert TWO.parse(TWO.spell(made)) == made
        others += made not in parents
    assert others > 200


def test_parts_are_read_by_line_with_what_may_be_left_out():
    """Parts are read by line with what may be left out."""
    made = TWO.parse("score = age + 1")
    assert TWO.spell(made) == "keep = age < 1\nscore = age + 1"
    for text, said in {
        "scorre = 1": "did you mean score", "keep = 1 < 2": "no line for score",
        "score = 1 < 2": "want a number", "score = 1\nscore = 2": "one line",
    }.items():  # fmt: skip
        with pytest.raises(StrettoError, match=said):
            TWO.parse(text)


def test_behaviour_tells_apart_what_orders_differently_and_nothing_else():
    """Behaviour tells apart what orders differently and nothing else."""
    ranks = Form(FEATURES, orders=True)
    same = [FORM.parse(t) for t in ("age", "age * 2 + 1", "log(age)")]
    assert len({ranks.behaviour(p) for p in same}) == 1
    assert len({FORM.behaviour(p) for p in same}) == 3
    assert ranks.behaviour(FORM.parse("-age")) != ranks.behaviour(same[0])


def built(tmp_path, text, suffix):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, made = tmp_path / f"{suffix}.c", tmp_path / f"{suffix}.so"
    source.write_text(text)
    command = [
        compiler,
        "-O1",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        "-o",
        made,
        source,
    ]
    subprocess.run([*map(str, command), "-lm"], check=True, capture_output=True)
    return ctypes.CDLL(str(made))


def test_c_gives_the_bits_of_the_machine(tmp_path):
    """C gives the bits of the machine."""
    chosen = [t for t in terms(60, seed=7) if kind_of(t) == NUMBER]
    text = "".join(as_c(t, FEATURES, name=f"f{i}") for i, t in enumerate(chosen))
    head = as_c(chosen[0], FEATURES).partition("\n\n")[0]
    library = built(tmp_path, head + "\n" + text.replace(head, ""), "doubles")
    inputs = rows(40)
    for i, term in enumerate(chosen):
        function = library[f"f{i}"]
        function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double] * 3
        want = evaluate(code_of(term, FEATURES), inputs)
        assert [function(*row) for row in inputs] == want.tolist(), spell(term)


@pytest.mark.parametrize("kernel", [False, True])
def test_all_parts_of_a_policy_are_one_file_of_c(tmp_path, kernel):
    """It compiles as it is, and each part is a function."""
    file = tmp_path / "policy.toml"
    lines = "probation = 0.5\nscore = count / (age * size)"
    file.write_text(f'problem = "cache"\nfound = """{lines}"""\n')
    found = load(file)
    library = built(tmp_path, found.as_c(kernel=kernel), f"parts{kernel}")
    kind = ctypes.c_longlong if kernel else ctypes.c_double
    given = dict.fromkeys(found.kind.form.features, 2)
    for part, gives in found.kind.form.kinds.items():
        function = library[part]
        function.restype, function.argtypes = kind, [kind] * len(given)
        parts = 65536 if kernel and gives == NUMBER else 1
        got = function(*given.values()) / parts
        assert got == pytest.approx(found.value(part, **given), abs=1e-4)


def test_fixed_point_comes_near(tmp_path):
    """Fixed point comes near."""
    texts = (
        "age / count + log(size)", "where(age < count, size * 0.5, -age)",
        "min(age, 7) - max(count, 3) / (size - 2)", "log(age * count) * 3",
    )  # fmt: skip
    chosen = [parse(text, FEATURES) for text in texts]
    head = as_bpf(chosen[0], FEATURES).partition("\n\n")[0]
    text = "".join(as_bpf(t, FEATURES, name=f"f{i}") for i, t in enumerate(chosen))
    library = built(tmp_path, head + "\n" + text.replace(head, ""), "fixed")
    rng = np.random.default_rng(2)
    inputs = rng.integers(1, 30_000, (50, 3)).astype(float)
    for i, term in enumerate(chosen):
        function = library[f"f{i}"]
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * 3
        got = [function(*map(int, row)) / 65536 for row in inputs]
        want = evaluate(code_of(term, FEATURES), inputs)
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_bpf_is_compiled_where_clang_is(tmp_path):
    """Bpf is compiled where clang is."""
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("no clang here")
    source = tmp_path / "f.c"
    source.write_text(as_bpf(parse("age / log(size) * 2", FEATURES), FEATURES))
    command = [clang, "-O2", "-target", "bpf", "-c", source, "-o", tmp_path / "f.o"]
    subprocess.run([*map(str, command)], check=True, capture_output=True)


def test_a_text_that_is_too_long_is_refused_before_it_is_read():
    """A text that is too long is refused before it is read."""
    with pytest.raises(ParseError, match="want at most"):
        language.Form(FEATURES).parse("1 + " * 100_000)
