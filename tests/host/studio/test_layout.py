"""Pages as they are seen first: narrow ones, and what is above the fold."""

from dataclasses import replace

import pytest
from tests.host.studio.browser import executable
from tests.host.studio.pages import SHOWN, drawn, end, opened, serve
from tests.host.studio.test_browser import VIEWS
from tests.pure.studio.made import recording

from stretto.studio import NamedInputs
from stretto.trace import write

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(executable() is None, reason="no Chromium here"),
    pytest.mark.xdist_group("browser"),
]
NARROW = (390, 800)


def test_narrow_pages_do_not_overflow(page, server):
    """On a telephone every view is as wide as the window, light and dark."""
    page.size(*NARROW)
    try:
        opened(page, server, "overview")
        for name in VIEWS:
            page.run(f"document.getElementById('to-{name}').click()")
            page.until(SHOWN.format(name), name)
            drawn(page)
            for _ in ("light", "dark"):
                wide = page.run("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} is {wide} pixels wider than the window"
                page.run("document.getElementById('theme').click()")
    finally:
        page.size(1280, 900)


def test_long_names_are_broken_where_a_page_is_narrow(page, tmp_path):
    """Parts of steps are named by programs, without a blank for a whole line."""
    made = recording(4, 9)
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__.of_a_program"
    kinds = tuple(replace(kind, collective=name) for kind in made.kinds)
    path = tmp_path / "long.trace"
    write(path, replace(made, kinds=kinds))
    server = serve(NamedInputs(recordings=(path,)))
    page.size(*NARROW)
    try:
        for view in ("overview", "timeline", "lateness"):
            opened(page, server, view)
            drawn(page)
            wide = page.run("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{view} is {wide} pixels wider than the window"
    finally:
        page.size(1280, 900)
        end(page, server)


def test_what_is_missing_is_said_first(page, tmp_path):
    """Which option records it, too, beneath the heading; nothing empty is drawn."""
    path = tmp_path / "calls.trace"
    write(path, recording(4, 9, steps_a_call=0))
    server = serve(NamedInputs(recordings=(path,)))
    page.size(1280, 800)
    for name, option in (
        *((view, "stretto trace --steps") for view in ("topology", "traffic")),
        ("timeline", "stretto trace"),
    ):
        opened(page, server, name)
        note = "document.querySelector('main h2 + .notes')"
        assert option in page.run(f"{note}.textContent")
        assert page.run(f"{note}.getBoundingClientRect().bottom") < 400
        drawings = page.run("document.querySelectorAll('main canvas').length")
        assert drawings == (name == "timeline")
    page.size(1280, 900)
    end(page, server)


def test_a_recording_without_calls_says_so(page, tmp_path):
    """On each of its views, and no empty picture is drawn."""
    path = tmp_path / "none.trace"
    whole = recording(4, 9, steps_a_call=0)
    write(path, replace(whole, calls=whole.calls[:0]))
    server = serve(NamedInputs(recordings=(path,)))
    for name in ("overview", "table", "lateness", "timeline"):
        opened(page, server, name)
        note = page.run("document.querySelector('main .notes').textContent")
        assert note.startswith("No calls were recorded")
        drawings = page.run("document.querySelectorAll('main canvas').length")
        assert drawings == (name == "timeline")
    end(page, server)


@pytest.mark.parametrize(("name", "at"), [("timeline", 0), ("topology", 0)])
def test_axes_of_time_are_above_the_fold(page, server, name, at):
    """Of a window as laptops have it."""
    page.size(1280, 800)
    opened(page, server, name)
    canvas = f"document.querySelectorAll('main canvas')[{at}]"
    assert page.run(f"{canvas}.getBoundingClientRect().bottom") <= 800
    page.size(1280, 900)
