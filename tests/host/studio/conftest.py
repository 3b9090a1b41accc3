"""A browser for the tests of this folder, and a studio with all that there is."""

import json

import pytest
from tests.host.studio.browser import browser
from tests.host.studio.pages import serve
from tests.pure.search.planted import Planted
from tests.pure.studio.made import recording, tuning

from stretto.program import algorithms
from stretto.search import evolve
from stretto.studio import NamedInputs
from stretto.trace import write


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return a tab of one browser for all tests."""
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        tab.size(1280, 900)
        yield tab


@pytest.fixture(autouse=True)
def console(page):
    """Whatever the console complains of fails the test."""
    page.complaints.clear()
    yield
    page.run("1")  # hear what is still under way
    assert [] == page.complaints


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two recordings and a report."""
    made = tmp_path_factory.mktemp("runs")
    write(made / "before.trace", recording(8, 60, machine="h200x8", slow=(5,)))
    write(made / "after.trace", recording(8, 60, stretch=0.8, title="after", late=None))
    (made / "report.json").write_text(json.dumps(tuning()))
    evolve(Planted(), evals=60, seed=1, path=made / "run.db").run.close()
    return made


@pytest.fixture(scope="module")
def server(folder):
    """Serve all that there is: recordings, a program, a report."""
    program = algorithms.get("all_reduce/two_shot").build(8)
    server = serve(
        NamedInputs(
            recordings=(folder / "before.trace", folder / "after.trace"),
            program=program,
            source=program.source.rpartition(":")[0],
            reports=(folder / "report.json",),
            searches=(folder / "run.db",),
        )
    )
    yield server
    server.stop()
