"""The page's own files: they join into one, and no text ever becomes code."""

import base64
import hashlib
import json
import re
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pure.search.planted import Planted
from tests.pure.studio.made import hanging, recording, tuning

from stretto.program import algorithms
from stretto.search import evolve
from stretto.studio import NamedInputs, Studio, exported, views
from stretto.studio.ask import EXAMPLES
from stretto.studio.serve.pack import unpack
from stretto.studio.web import bundled, web_file, web_names
from stretto.trace import CallKind, Comm, RankInfo, Run, write

SCRIPTS = [name for name in web_names() if name.endswith(".js")]
NAMES = re.compile(
    r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE
)
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    r"|createContextualFragment|DOMParser|srcdoc|javascript:|import\("
)
ELSEWHERE = re.compile(r"""(?:src|href|url|from|fetch)\W{1,3}(?:https?:)?//""")


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_reads_text_as_code(name):
    """Texts of recordings become text nodes, and nothing else."""
    text = web_file(name).decode()

    assert [] == DANGEROUS.findall(text)
    assert [] == re.findall(r"setTimeout\(\s*['\"]|setInterval\(\s*['\"]", text)


@pytest.mark.parametrize("name", web_names())
def test_nothing_is_asked_of_anybody_else(name):
    """The page works where there is no network."""
    text = web_file(name).decode().replace("http://www.w3.org/2000/svg", "")

    assert [] == ELSEWHERE.findall(text)
    assert text.isascii()
    if name.endswith(".html"):
        assert [] == re.findall(r"\son\w+=|<script>|style=", text)


def test_names_are_distinct_in_all_scripts():
    """So that they can be joined into one."""
    found = [n for name in SCRIPTS for n in NAMES.findall(web_file(name).decode())]

    assert sorted(set(found)) == sorted(found)


def test_every_script_is_in_the_joined_page():
    """And nothing of what tied them is left."""
    text = bundled()

    for name in SCRIPTS:
        for one in NAMES.findall(web_file(name).decode()):
            assert re.search(rf"\b(function|const|let|class) {one}\b", text), one
    assert [] == re.findall(r"^(?:import|export)\b.*", text, re.MULTILINE)


def test_every_view_has_a_script_and_every_script_of_views_a_view():
    """One file each, of the same name."""
    drawn = {n[6:-3] for n in web_names() if n.startswith("views/")}

    assert set(views.names()) == drawn


EVIL = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "<!--<script>",
    "javascript:alert(4)",
    "${alert(5)}",
    "\u2028\u202e\x00\x1b[31m",
    "' onmouseover='alert(6)",
)


def hostile(name, tmp_path, calls=9):
    """Write a recording with a name wherever one can be."""
    made = recording(3, calls)
    parts = {n: getattr(made, n) for n in ("calls", "steps")}
    kind = CallKind(**{
        n: f"{name}{n}" if isinstance(getattr(made.kinds[0], n), str) else 9
        for n in made.kinds[0].__slots__
    })  # fmt: skip
    path = tmp_path / "hostile.trace"
    write(
        path,
        made.__class__(
            **parts,
            ranks=tuple(
                RankInfo(rank=r, num_ranks=3, host=name, device=name, clock=name)
                for r in range(3)
            ),
            comms=(Comm(name=name, members=(0, 1, 2)),),
            kinds=(kind, kind, kind),
            run=Run(title=name, command=(name,), machine=name, version=name),
        ),
    )
    return path


def page_of(path, **more):
    studio = Studio(NamedInputs(recordings=(path, path), **more))
    studio.refresh()
    assert "ready" == studio.index()["state"], studio.index()["failed"]
    return exported(studio)


def scripts_of(page):
    return re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(name=st.sampled_from(EVIL) | st.text(min_size=1, max_size=30))
def test_no_name_of_a_recording_gets_into_the_page_as_code(name, tmp_path):
    """Whatever it is called, an export has its two scripts, word for word."""
    page = page_of(hostile(name, tmp_path, 3))
    (_, data), (kind, script) = scripts_of(page)

    assert bundled() == script
    assert ' type="module"' == kind
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", data)
    assert 2 == page.count("<script")


def test_an_export_holds_every_view_and_every_answer(tmp_path):
    """It opens anywhere: its scripts and style are named by their hashes."""
    path, report = tmp_path / "a.trace", tmp_path / "t.json"
    write(path, hanging())
    report.write_text(json.dumps(tuning()))
    program = algorithms.get("all_reduce/ring").build(4)
    run = tmp_path / "run.db"
    evolve(Planted(), evals=30, seed=1, path=run).run.close()
    page = page_of(path, reports=(report,), searches=(run,), program=program)
    (_, data), (_, script) = scripts_of(page)
    kept = json.loads(zlib.decompress(base64.b64decode(data)))
    policy = re.search(r'Security-Policy" content="([^"]*)"', page)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]

    assert set(views.names()) == {key.split("&")[0] for key in kept["data"]}
    assert set(EXAMPLES) == set(kept["answers"])
    for text in kept["data"].values():
        if not text.startswith("!"):
            assert unpack(zlib.decompress(base64.b64decode(text)))
    for text in (script, style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "/web/" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "want what `stretto tune --report` writes"),
        ('[{"trials": 3}]', "want what"),
    ],
)
def test_a_report_that_is_none_is_refused_with_its_name(tmp_path, text, said):
    """Clearly, in one line."""
    path = tmp_path / "report.json"
    path.write_text(text)
    studio = Studio(NamedInputs(reports=(path,)))
    studio.refresh()

    assert "report.json" in studio.index()["failed"]
    assert said in studio.index()["failed"]


def test_trials_that_are_none_are_passed_over_and_counted(tmp_path):
    """The others are shown."""
    path = tmp_path / "report.json"
    good = tuning()[0]["trials"][0]
    wrong = [3, {}, {**good, "us": "x"}, {**good, "us": -1}, {**good, "pin": 5}]
    wrong += [
        {**good, "nbytes": 1.5},
        {**good, "us": 1e999},
        {**good, "nbytes": 1 << 70},
    ]
    path.write_text(json.dumps([{"trials": [*wrong, good]}]))
    studio = Studio(NamedInputs(reports=(path,)))
    studio.refresh()
    found = unpack(studio.view("tune", {}))

    assert len(wrong) == found["passed_over"]
    assert [good["us"]] == [t["us"] for s in found["searches"] for t in s["trials"]]


def test_a_run_of_a_search_is_shown_with_whom_its_best_came_from(tmp_path):
    """Every candidate with its last verdict; the best, and all that it was made of."""
    run = evolve(Planted(), evals=120, seed=2, path=tmp_path / "run.db").run
    rows = list(run.rows())
    run.close()
    studio = Studio(NamedInputs(searches=(tmp_path / "run.db",)))
    studio.refresh()
    assert "search" in [one["name"] for one in studio.index()["views"]]
    (found,) = unpack(studio.view("search", {}))["runs"]
    trials = {trial["number"]: trial for trial in found["trials"]}
    whole = [trial for trial in trials.values() if trial["whole"]]
    best = min(whole, key=lambda trial: (trial["cost"], trial["number"]))

    assert {one.trial.number for one in rows} == trials.keys()
    assert ("planted", "2", 0) == (
        found["problem"],
        found["seed"],
        found["passed_over"],
    )
    assert best["line"]
    for trial in trials.values():
        if trial["line"]:
            assert all(trials[parent]["line"] for parent in trial["parents"])
    assert 1 < sum(trial["line"] for trial in trials.values()) < len(trials)


@pytest.mark.parametrize("data", [None, b"", b"no database at all, but long enough"])
def test_a_run_that_is_none_is_refused_with_its_name(tmp_path, data):
    """In one line; nothing is made where there was nothing."""
    path = tmp_path / "run.db"
    if data is not None:
        path.write_bytes(data)
    studio = Studio(NamedInputs(searches=(path,)))
    studio.refresh()

    assert "run.db" in studio.index()["failed"]
    assert path.exists() == (data is not None)
