"""What the documentation shows is what happens: its blocks run, its pages are true.

In README.md and docs/: each `python` block is a program, with those below that say that
they go on from it; each `pycon` block is a doctest; commands after `$` in `console`
blocks run, and print what is shown (`...` stands for anything). A `python` block whose
first line is a torchrun command is run by that command. Other blocks are only shown.
"""

import doctest
import json
import pkgutil
import re
import runpy
import shlex
from pathlib import Path

import pytest
from tests.meta.launched import launch, launched
from tests.meta.programs import run

from stretto import errors
from stretto.compiler.plan import parse_plan
from stretto.compiler.verify import verify, verify_plan
from stretto.program.ir import parse_program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


FRAMEWORKS = DOCS / "guides" / "frameworks.md"
"""What it shows is run by tests/host/torch, where frameworks are installed."""
LAUNCHED = [
    pytest.param(one, id=f"{path.stem}-{one.name}", marks=[pytest.mark.slow] * (i > 0))
    for path in PAGES
    if path != FRAMEWORKS
    for i, one in enumerate(launched(path))  # a page's first is soon run
]


def blocks(path, kind):
    """Return the blocks of one kind, but for programs that processes run together."""
    together = {one.text for one in launched(path)}
    found = [text for name, text in BLOCK.findall(path.read_text()) if name == kind]
    return [text for text in found if text not in together]


def pages(*kinds):
    """Parametrise by the pages that have such blocks."""
    found = [
        path
        for path in PAGES
        if any(blocks(path, kind) for kind in kinds) and path.parent != API
    ]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return pytest.mark.parametrize("path", found, ids=names)


API = DOCS / "reference" / "api"
"""Its examples are programs of their own, which run by night: `ALONE`."""
GOES_ON = "# goes on from the blocks above\n"


def programs(path):
    """Return what runs by itself: blocks, each with those that go on from it."""
    found = []
    for text in blocks(path, "python"):
        if text.startswith(GOES_ON):
            found[-1] += text
        else:
            found.append(text)
    return found


def run_blocks(text, folder, *, fresh):
    script = folder / "page.py"
    script.write_text(text)

    done = run([script], fresh=fresh, cwd=folder)

    assert 0 == done.returncode, done.stdout


@pages("python")
def test_python_blocks_run(path, tmp_path):
    """The blocks of a page, one after the other, are a program that works."""
    text = "\n".join(blocks(path, "python"))
    run_blocks(text, tmp_path, fresh=path.stem == "README")


ALONE = [
    pytest.param(text, id=f"{path.relative_to(ROOT).as_posix()}-{i}")
    for path in PAGES
    for i, text in enumerate(programs(path))
]


@pytest.mark.slow
@pytest.mark.parametrize("text", ALONE)
def test_each_program_runs_by_itself(text, tmp_path):
    """As a reader copies it; each rank is a process of its own from the start."""
    run_blocks(text, tmp_path, fresh=True)


@pytest.mark.parametrize("program", LAUNCHED)
def test_programs_run_as_they_are_shown(program, tmp_path):
    """Several processes run it by its first line, where stretto is installed."""
    pytest.importorskip("torch")
    launch(program, tmp_path, timeout_s=120)


@pages("pycon")
def test_interactive_blocks_print_what_they_show(path):
    """Each is a session of its own."""
    parser = doctest.DocTestParser()
    heard = []
    for text in blocks(path, "pycon"):
        session = parser.get_doctest(text, {}, path.name, str(path), 0)
        doctest.DocTestRunner(optionflags=FLAGS).run(session, out=heard.append)

    assert [] == heard, "".join(heard)


@pages("console")
def test_commands_print_what_they_show(path):
    """Commands succeed, or show how they fail, and print what follows them."""
    for block in blocks(path, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            command = shlex.split(line)
            assert command[0] in ("stretto", "python"), line
            start = ["-m", "stretto"] if command[0] == "stretto" else []

            done = run([*start, *command[1:]], cwd=ROOT)

            same = doctest.OutputChecker().check_output(shown, done.stdout, FLAGS)
            assert same, f"$ {line}\nshown:\n{shown}\nprinted:\n{done.stdout}"


REFERENCE = [
    pytest.param(text, *how, id=f"{page}-{i}")
    for page, *how in (("ir", parse_program, verify), ("plan", parse_plan, verify_plan))
    for i, text in enumerate(blocks(DOCS / "reference" / f"{page}.md", "text"))
]


@pytest.mark.parametrize(("text", "parse", "prove"), REFERENCE)
def test_programs_and_plans_of_the_reference_are_such(text, parse, prove):
    """Every example is parsed, proved, and printed back as it is written."""
    made = parse(text)

    assert text == str(made)
    prove(made)


def test_figures_of_the_readme_are_those_of_the_results():
    """Every figure of its table is in the files beneath it, as it is rounded there."""
    text = (ROOT / "README.md").read_text()
    results = ROOT / "benchmarks" / "results"
    gpus = json.loads((results / "gpu_collectives_h200x4_202611.json").read_text())
    cpus = json.loads((results / "torch_cpux2_202611.json").read_text())["us"]
    measured = {(row["collective"], row["nbytes"]): row for row in gpus["rows"]}
    scale = {"KB": 1 << 10, "MB": 1 << 20}
    said = re.findall(
        r"^\| (.*?)(\w+) of (\d+) (\wB), (.*?) \|(.*)\|$", text, re.MULTILINE
    )

    assert len(said) >= 6
    for _, verb, number, unit, where, cells in said:
        nbytes = int(number) * scale[unit]
        if "GPU" in where or "H200" in where:
            row = measured[verb, nbytes]
            peers = row["peers_us"]
            nccl = [us for name, us in peers.items() if name.startswith("nccl")]
            known = [row["ours_us"], peers["nccl default"], min(nccl)]
            known += [peers.get("mscclpp (recorded)"), None]
        else:
            both = cpus[verb][str(nbytes)]
            known = [both["stretto"], None, None, None, both["gloo"]]
        figures = ["" if us is None else f"{us:.1f}" for us in known]
        assert figures == [cell.strip() for cell in cells.split("|")]


def test_every_error_has_an_anchor():
    """docs/reference/errors.md explains each class, and no other."""
    page = (DOCS / "reference" / "errors.md").read_text()

    assert sorted(errors.__all__) == sorted(
        re.findall(r"^##+ (\w+)$", page, re.MULTILINE)
    )


def test_architecture_is_up_to_date():
    """docs/architecture.md says what the rooms and the contract say."""
    script = runpy.run_path(str(ROOT / "scripts" / "architecture.py"))

    assert script["page"]() == (DOCS / "architecture.md").read_text(), (
        "run: python scripts/architecture.py"
    )


def test_the_table_of_verbs_is_up_to_date():
    """docs/guides/run.md says what the verbs' description says."""
    script = runpy.run_path(str(ROOT / "scripts" / "verbs.py"))

    assert script["page"]() == script["PAGE"].read_text(), "run: scripts/verbs.py"


def test_every_decision_says_why():
    """A decision record has a context, a decision, what was refused, and its doubts."""
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    bare = [
        path.name
        for path in records
        if not re.match(r"\d{4}-[a-z0-9-]+\.md\Z", path.name)
        or len(path.read_text().split()) < 80
    ]

    assert records
    assert [] == bare


def test_names_of_ours_are_names_of_something():
    """Each `stretto.NAME` is a module, something in one, or a group of entries."""
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    groups = set(re.findall(r'group="(stretto[.\w]+)"', "".join(sources)))
    seen, strange = 0, []
    for path in PAGES:
        if path.parent.name in ("decisions", "notes"):
            continue  # they say what there was
        for name in re.findall(r"`(stretto(?:\.[A-Za-z_]\w*)+)", path.read_text()):
            seen += 1
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                strange += [f"{path.name}: {name}"] * (name not in groups)

    assert [] == strange
    assert seen > 50


def test_the_tour_speaks_of_what_is_there():
    """Every name in a section of docs/tour.md occurs in the file it is about."""
    _, *sections = re.split(
        r"^## \d\. `(.+?)`", (DOCS / "tour.md").read_text(), flags=re.MULTILINE
    )
    strange = [
        f"{name}: {word}"
        for name, text in zip(sections[::2], sections[1::2], strict=True)
        for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text.partition("\n## ")[0])
        for word in re.findall(r"[A-Za-z_]\w+", code)
        if word not in (ROOT / "src" / "stretto" / name).read_text()
    ]

    assert 5 == len(sections) / 2
    assert [] == strange
