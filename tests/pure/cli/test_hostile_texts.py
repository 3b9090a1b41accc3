"""What anybody may write, read: as it prints, or an error of ours; never much memory.

Real documents of every reader are spoiled: bytes, digits of other scripts, numbers with
zeros and underscores or blown up, words and keys given twice, lines lost and doubled.
"""

import json
import re
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.pure.foreign.test_mscclpp import packets

from stretto.bench import read_document
from stretto.bench.tune.memory import _read
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, parse_plan
from stretto.compiler.verify import verify
from stretto.errors import ParseError, StrettoError
from stretto.program import algorithms
from stretto.program.foreign import from_plan, from_xml, to_xml
from stretto.program.ir import parse_program
from stretto.runtime.choice import Profile, parse_sizes
from stretto.synth.sketch.rules import _parse as parse_sketch
from stretto.topology import load
from stretto.transfer.layouts import Layout

QUICK = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MOST_BYTES = 64 << 20
NUMBERS = (
    *("-1", "+5", "005", "1_0", "0x10", "1e400", "nan", "1.5", "\u0663", "\u00b2"),
    *("0", "10000000", "9" * 9, "9" * 10, "9" * 20, "9" * 5000, "true", '""', "[]"),
)

PROGRAM = str(algorithms.get("all_reduce/ring").build(3)) + "  @more\n"
PLAN = str(
    lower(
        verify(algorithms.get("all_reduce/two_shot").build(2)),
        Schedule.parse("push packets staged blocks=2"),
        hosts=(0, 1),
    )
)
XML = to_xml(algorithms.get("all_reduce/ring").build(2), min_bytes=0, max_bytes=64)
JSON = json.dumps(
    {"name": "x", "collective": "allreduce", "gpus": [packets(0), packets(1)]}
)
MACHINE = """about = "a box"
kind = "gpu"
[box]
ranks = 4
nics = 2
rotations = [1]
[[box.meshes]]
pairs = [[0, 1], [1, 2], [2, 3], [3, 0]]
bandwidth_gbytes_per_s = 5
latency_us = 0
[repeat]
boxes = 2
[[repeat.links]]
from_to = [[0, 0], [1, 1], [2, 2], [3, 3]]
bandwidth_gbytes_per_s = 5
latency_us = 1
"""
PROFILE = """executor = "cpu"
about = "x"
[[rule]]
collective = "all_reduce"
memory = "staged"
ranks = [2, 8]
least = "64"
sizes = [["4K", "all_reduce/ring push packets staged"], ["1G", "all_reduce/ring"]]
"""
SKETCH = """about = "x"
machines = ["a*"]
slack = 1
symmetry = [[1, 2]]
split = [1, 2]
size = "1M"
[crossings]
0 = [1]
[carriers]
0 = 1
"""
ROWS = '{"schema": 1, "rows": [{"test": "all_reduce", "ok": true, "nbytes": 8}]}'
STATE = (
    '{"decided": {}, "failed": {"all_reduce/ring push packets staged 64": "late"},'
    ' "suspects": ["all_reduce/ring push bulk staged 64"]}'
)
LAYOUT = "L=32 | KV=2 B=1000 T=16 H=8[2:4] D=128 bfloat16"


def words(text):
    """Return the words by line, without empty lines and comments."""
    lines = [line.split("#", 1)[0] if "#" in line else line for line in text]
    return [line.split() for line in lines if line.split()]


def same_program(text, program):
    """Whatever is not printed as it was is what the parser says means nothing."""
    assert str(parse_program(str(program))) == str(program)
    header, *lines = text.splitlines()
    printed_header = str(program).splitlines()[0]
    assert {"split=1", *header.split()} == {"split=1", *printed_header.split()}
    given_ops = [" ".join(w) for w in words(lines) if "=" in w or "+=" in w]
    printed = [" ".join(w) for w in words(str(program).splitlines()[1:])]
    printed = [line for line in printed if "=" in line]
    short = [re.sub(r"\[(\d+):(\d+)\]", _short, line) for line in given_ops]
    short = [re.sub(r"^(\S+) = \1 \+ (\S+)$", r"\1 += \2", line) for line in short]
    assert short == printed


def _short(match):
    start, stop = int(match[1]), int(match[2])
    return f"[{start}]" if stop == start + 1 else match[0]


def same_plan(text, plan):
    """A plan is printed as it was: but for blanks, and two lines' order of words."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    printed = [line.split() for line in str(plan).splitlines()]
    assert sorted(lines[0]) == sorted(printed[0])
    assert Schedule.parse(" ".join(w for w in lines[1][1:] if w != "in_place")) == (
        plan.schedule
    )
    assert lines[2:] == printed[2:]


def same_schedule(text, schedule):
    """The words that are not those of a plain schedule, each once."""
    plain = {*str(Schedule()).split(), "blocks=1", "threads=512", "depth=4"}
    plain |= {f"tile_bytes={1 << 18}"}
    given_words = sorted(w for w in text.split() if w not in plain and ":" not in w)
    printed = sorted(w for w in str(schedule).split() if w not in plain)
    assert given_words == [w for w in printed if ":" not in w]


def imported(_, program):
    """A program of another tool can be written as ours, and read again."""
    assert parse_program(str(program)) == program


def same_layout(text, layout):
    """A layout's text is its identity: numbers are as they were."""
    numbers = set(re.findall(r"\d+", str(layout)))
    assert numbers <= {*re.findall(r"[0-9]+", text)}
    assert str(Layout(str(layout))) == str(layout)


def of_file(read, ending):
    """Return a reader of text that reads it from a file."""

    def reader(text, folder):
        path = folder / f"a.{ending}"
        path.write_text(text, encoding="utf-8", newline="")
        return read(path)

    return reader


def plain(read):
    """Return a reader of text that needs no folder."""
    return lambda text, _: read(text)


READERS = {
    "program": (PROGRAM, plain(parse_program), same_program),
    "plan": (PLAN, plain(parse_plan), same_plan),
    "schedule": ("pull bulk staged blocks=4", plain(Schedule.parse), same_schedule),
    "MSCCL": (XML, plain(from_xml), imported),
    "MSCCL++": (JSON, plain(from_plan), imported),
    "machine": (MACHINE, of_file(load, "toml"), None),
    "profile": (PROFILE, plain(lambda text: Profile.parse(text, "p.toml")), None),
    "sketch": (SKETCH, plain(lambda text: parse_sketch("s", text)), None),
    "sizes": ("1K:64K:4,8,1M", plain(parse_sizes), None),
    "bench": (ROWS, of_file(read_document, "json"), None),
    "tuning": (STATE, of_file(_read, "json"), None),
    "layout": (LAYOUT, plain(Layout), same_layout),
}


@st.composite
def spoiled(draw, text):
    """Return a text with one to three things wrong with it."""
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("number", "number", "word", "line", "character")))
        if kind == "number" and (found := list(re.finditer(r"\d+", text))):
            at = draw(st.sampled_from(found))
            text = (
                text[: at.start()] + draw(st.sampled_from(NUMBERS)) + text[at.end() :]
            )
        elif kind == "word" and (found := list(re.finditer(r"[^\s,]+[\s,]*", text))):
            one, other = draw(st.sampled_from(found)), draw(st.sampled_from(found))
            text = text[: one.start()] + other[0] + text[one.start() :]
        elif kind == "line":
            lines = text.splitlines(keepends=True)
            one, other = (draw(st.integers(0, len(lines) - 1)) for _ in "ab")
            lines[one : one + draw(st.integers(0, 1))] = [lines[other]]
            text = "".join(lines)
        elif text:
            at = draw(st.integers(0, len(text) - 1))
            new = draw(
                st.sampled_from(("", "\0", " ", "\u2028", "'", "0", "{", "\ud7ff"))
            )
            text = text[:at] + new + text[at + draw(st.integers(0, 1)) :]
    return text


def read_or_refused(text, read, same, folder):
    """Read; say whether it was, having looked at what came of it and what it took."""
    said = ""
    tracemalloc.start()
    try:
        found = read(text, folder)
    except StrettoError as e:
        found, said = None, str(e)
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < MOST_BYTES
    assert len(said) < 20_000
    if found is not None and same is not None:
        same(text, found)
    return found is not None


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(data=st.data())
def test_a_spoiled_text_is_as_it_prints_or_refused(tmp_path_factory, name, data):
    """Never another meaning, never an error of Python's, never much memory."""
    text, read, same = READERS[name]
    folder = tmp_path_factory.getbasetemp()
    assert read_or_refused(text, read, same, folder), "the text itself is right"

    read_or_refused(data.draw(spoiled(text)), read, same, folder)


@pytest.mark.parametrize("name", ["program", "plan", "schedule", "MSCCL", "layout"])
def test_every_number_of_a_text_is_spelled_as_it_prints(tmp_path, name):
    """At each place where a number is, another spelling of it is refused."""
    text, read, same = READERS[name]
    for at in re.finditer(r"(?<![A-Za-z0-9])\d+|(?<=r)\d+", text):
        number = at[0]
        others = (f"0{number}", f"+{number}", f"{number}_0", "9" * 20)
        for other in (*others, chr(0x660 + int(number) % 10)):
            wrong = text[: at.start()] + other + text[at.end() :]
            was_read = read_or_refused(wrong, read, same, tmp_path)
            assert not was_read or PASSED_OVER.search(text[: at.start()]), wrong


PASSED_OVER = re.compile(r'(?:name|Bytes|channels|place|[os]_chunks|hasdep)="[^"]*$')
"""Attributes of MSCCL's that only its runtime reads."""
BOMB = (
    '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 9))
    + ']><algo coll="allreduce" name="&a8;"/>'
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MSCCL", BOMB.replace("&a0;", "&a;")),
        ("MSCCL", "<a>" * 100_000),
        ("MSCCL", XML.replace('ngpus="2"', 'ngpus="99999999999999999999"')),
        ("MSCCL++", "[" * 100_000),
        ("MSCCL++", JSON.replace('"name": "x"', '"tbg_size": 1, "tbg_size": 2')),
        ("MSCCL++", JSON.replace('"size": 1', '"size": 1, "tbg_size": 1000000000')),
        ("plan", PLAN.replace("hosts 0x1 1x1", f"hosts 0x{10**20}")),
        ("plan", re.sub(r"stage \d+", f"stage {10**20}", PLAN)),
        ("plan", "plan "),
        ("machine", MACHINE.replace("ranks = 4", "ranks = 60000")),
        ("machine", MACHINE.replace("boxes = 2", f"boxes = {10**9}")),
        ("machine", "a = " + "[" * 100_000),
        ("profile", PROFILE.replace("8]", "inf]")),
        ("sizes", "1:" + "9" * 5000),
    ],
)
def test_texts_that_would_fill_memory_are_refused(tmp_path, name, text):
    """Entities, nesting, counts of 10^20: a refusal, of little memory."""
    _, read, same = READERS[name]

    assert not read_or_refused(text, read, same, tmp_path)


def test_a_key_given_twice_is_said():
    """By its name."""
    with pytest.raises(ParseError, match="root is given twice"):
        parse_program(PROGRAM.replace("split", "root=1 root=2 split", 1))
