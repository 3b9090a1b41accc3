"""The page in a real browser: every flow clicked through, nothing on the console."""

import json
import re
import threading
import time

import pytest
from tests.host.studio.browser import executable
from tests.host.studio.pages import SHOWN, colours, drawn, end, opened, serve
from tests.pure.studio.made import hanging, recording
from tests.pure.studio.test_page import EVIL, hostile

from stretto.studio import NamedInputs, exported, follow
from stretto.studio.serve.opening import leads_to
from stretto.trace import write

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(
        executable() is None,
        reason="no Chromium here: the page was not shown in a browser; install the "
        "package chromium, or name one in CHROMIUM",
    ),
    pytest.mark.xdist_group("browser"),
]
FIRST_PAINT_S = 2.0


def pixels(page, at=0):
    return page.run(f"document.querySelectorAll('main canvas')[{at}].toDataURL()")


def press(page, name):
    """Press the button of that name."""
    buttons = "[...document.querySelectorAll('button')]"
    page.run(f"{buttons}.find(b => b.textContent == '{name}').click()")


def test_a_page_of_ours_on_disk_opens_the_studio(page, server, tmp_path):
    """As `stretto studio` opens it: the cookie comes along from a file, too."""
    page.call("Network.clearBrowserCookies")
    file = tmp_path / "leads.html"
    file.write_bytes(leads_to(server.address))
    page.call("Page.navigate", url=file.as_uri())

    page.until(SHOWN.format("overview"), "the first page")
    assert f"http://127.0.0.1:{server.access.port}/" == page.run("location.href")


VIEWS = (
    "overview", "topology", "traffic", "table", "lateness", "collective", "program",
    "compare", "tune", "search",
)  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_drawn_with_legends_and_units(page, server, name):
    """Something is on each canvas, light and dark, and each has a name for readers."""
    opened(page, server, name)
    canvases = page.run("document.querySelectorAll('main canvas').length")
    for at in range(canvases):
        assert colours(page, at) > 3
    light = [pixels(page, at) for at in range(canvases)]
    page.run("document.getElementById('theme').click()")
    drawn(page)
    dark = [pixels(page, at) for at in range(canvases)]
    page.run("document.getElementById('theme').click()")

    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert page.run(
        "[...document.querySelectorAll('main canvas')].every(c => c.ariaLabel[9])"
    )
    if canvases and name != "program":
        assert page.run("document.querySelectorAll('main .legend').length") > 0
    wide = page.run("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{name} is {wide} pixels wider than the window"


def test_the_slider_moves_through_time(page, server):
    """Another moment, other links: map, table and words change."""
    opened(page, server, "topology")
    when = "document.querySelector('output.readout').textContent"
    before, said = pixels(page), page.run(when)
    page.run("document.getElementById('when').focus()")
    for _ in range(9):
        page.key("ArrowRight")
    drawn(page)

    assert before != pixels(page)
    assert said != page.run(when)
    assert re.match(r"[\d.]+ [um]s to [\d.]+ [um]s of", page.run(when))
    press(page, "Play")
    page.until(f"{when} != {json.dumps(page.run(when))}", "playing")


def test_a_heat_map_is_read_with_the_keyboard(page, server):
    """Arrows move the cursor and say the cell; Enter comes closer; Escape goes back."""
    opened(page, server, "lateness")
    page.run("document.querySelector('main canvas').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.key(key)
    told = page.run("document.querySelector('main .readout').textContent")
    drawn(page)
    whole = pixels(page)
    page.key("Enter")
    drawn(page)
    closer = pixels(page)
    page.key("Escape")
    drawn(page)

    assert re.match(r"rank 3, step 2 \(all_gather\): [\d.]+ us after the first", told)
    assert whole != closer
    assert whole == pixels(page)


def test_a_line_shows_what_it_became(page, server):
    """Author's line, steps of the plan, lines of the kernel light one another."""
    opened(page, server, "program")
    lit = """[...document.querySelectorAll('[data-panel]')].map(p =>
        [...p.querySelectorAll('.lit')].map(d => d.textContent))"""
    spot = page.run(
        """(() => { const d = [...document.querySelectorAll('[data-panel=plan] .tied')]
                .find(d => d.textContent.includes('put r3'));
        const b = d.getBoundingClientRect();
        return [b.left + 40, b.top + 5]; })()"""
    )
    page.mouse("mouseMoved", *spot)
    drawn(page)
    author, plan, kernel = page.run(lit)

    assert 1 == len(author)
    assert "reduce(q.input[r] for q in ranks)" in author[0]
    assert 1 == len(plan)
    assert any("// 4: put r3.stage" in line for line in kernel)
    assert any("put<4>" in line for line in kernel)
    page.run("document.querySelector('[data-panel=author]').focus()")
    page.key("Escape")
    assert [[], [], []] == page.run(lit)
    page.key("ArrowDown")
    assert [] == page.run(lit)[0] or page.run(lit)[1]


def test_chunks_move_and_fill_what_ranks_hold(page, server):
    """Step by step from the program; then from the times that were measured."""
    opened(page, server, "collective")
    step = "document.querySelector('output.readout').textContent"
    assert "step 1 of 2" == page.run(step)
    before = pixels(page, 1)
    press(page, "Next step")
    drawn(page)
    assert "step 2 of 2" == page.run(step)
    assert before != pixels(page, 1)
    assert "output[0]" in page.run("document.querySelector('.told').innerText")
    page.run(
        """(() => { const s = [...document.querySelectorAll('label')]
        .find(l => l.textContent.startsWith('Drawn from')).querySelector('select');
        s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })()"""
    )
    page.until("document.querySelector('main h2')?.textContent.startsWith('world')")
    drawn(page)
    assert colours(page, 1) > 4
    assert re.search(r"of [\d.]+ us", page.run(step))


def asked(page, text):
    page.run("document.getElementById('question').focus()")
    page.run("document.getElementById('question').select()")
    page.write(text)
    page.run("document.getElementById('answer').replaceChildren()")
    page.key("Enter")
    return page.until("document.getElementById('answer').innerText", text)


def test_questions_are_asked_and_answered(page, server):
    """By keyboard alone; what is not understood gets a hint; an answer leads on."""
    opened(page, server, "overview")

    assert "Rank 3 held the others up" in asked(page, "late ranks in all_reduce")
    assert "From rank 5 to rank 6" in asked(page, "slowest link last minute")
    assert "did you mean 'over'" in asked(page, "late ranks ovr 1M")
    assert "Step 7" in asked(page, "why is step 7 slow?")
    page.run("document.querySelector('#answer a').click()")
    page.until(SHOWN.format("lateness"))


def test_tables_are_sorted_by_their_heads(page, server):
    """A click on a head orders the rows, a second one the other way round."""
    opened(page, server, "table")
    column = """[...document.querySelectorAll('main tbody tr')].map(r =>
        r.children[0].textContent)"""
    page.run("document.querySelector('main th button').click()")
    up = page.run(column)
    page.run("document.querySelector('main th button').click()")

    assert sorted(up) == up
    assert up[::-1] == page.run(column)
    assert "descending" == page.run("document.querySelector('main th').ariaSort")


def test_everything_can_be_reached_with_the_tab_key(page, server):
    """Links, the question, the theme, every control of the view; all named."""
    opened(page, server, "topology")
    page.run("document.activeElement.blur()")
    found = []
    for _ in range(40):
        page.key("Tab")
        found.append(
            page.run(
                """(() => { const e = document.activeElement; return e.id || e.ariaLabel
                || e.textContent.trim().slice(0, 30) || e.parentElement.textContent
                .trim().slice(0, 30) })()"""
            )
        )
    for name in ("to-topology", "question", "theme", "when", "Play"):
        assert name in found
    assert any("8 ranks" in name for name in found)
    assert all(found[:14])


def test_a_live_page_shows_what_was_written_since(page, tmp_path):
    """Without being loaded again."""
    path = tmp_path / "live.trace"
    write(path, recording(4, 9))
    server = serve(NamedInputs(recordings=(path,)))
    stop = threading.Event()
    loader = threading.Thread(target=follow, args=(server.studio, stop, 0.05))
    loader.start()
    opened(page, server, "table")
    count = """[...document.querySelectorAll('main tbody tr')].reduce((sum, r) =>
        sum + Number(r.children[4].textContent), 0)"""
    assert 9 == page.run(count)
    write(path, recording(4, 30))
    page.until(f"{count} == 30", "the new calls")
    stop.set()
    loader.join(10)
    end(page, server)


def test_an_export_is_whole_without_a_server(page, server, tmp_path):
    """Every view of it is drawn from the file; it answers the examples."""
    file = tmp_path / "page.html"
    file.write_text(exported(server.studio))
    page.go(file.as_uri())
    page.until(SHOWN.format("overview"))
    for name in VIEWS:
        page.run(f"document.getElementById('to-{name}').click()")
        page.until(SHOWN.format(name), name)
        drawn(page)
        for at in range(page.run("document.querySelectorAll('main canvas').length")):
            assert colours(page, at) > 3, name
    assert "From rank 5 to rank 6" in asked(page, "slowest link last minute")
    assert "this page is a file" in asked(page, "late ranks top 3")


@pytest.mark.parametrize("name", EVIL)
def test_names_of_a_recording_are_text(page, tmp_path, name):
    """Scripts, tags and handlers in every name: shown as they are, and nothing runs."""
    path = hostile(name, tmp_path)
    report = tmp_path / "report.json"
    tried = {"test": name, "pin": name, "us": 3.0, "simulated_us": 2.0, "nbytes": 8}
    report.write_text(json.dumps([{"memory": name, "trials": [tried]}]))
    server = serve(NamedInputs(recordings=(path, path), reports=(report,)))
    page.go("about:blank")
    page.go(server.address)
    page.until(SHOWN.format("overview"))
    page.run("window.alert = (x) => { throw new Error(`ran: ${x}`) }")
    for link in page.run("[...document.querySelectorAll('nav a')].map(a => a.id)"):
        page.run(f"document.getElementById('{link}').click()")
        page.until(SHOWN.format(link.removeprefix("to-")), link)
        drawn(page)
        assert 1 == page.run("document.scripts.length")
        assert 0 == page.run(
            "document.querySelectorAll('main img, main script').length"
        )
    end(page, server)


def test_a_thousand_ranks_are_shown_and_can_be_come_closer_to(page, tmp_path):
    """Boxes as tiles, then their links; matrix and heat map as whole pictures."""
    path = tmp_path / "many.trace"
    many = recording(1024, 12, machine="dgx_h200x128", late=611, steps_a_call=2)
    write(path, many)
    server = serve(NamedInputs(recordings=(path,)))
    began = time.monotonic()
    page.go("about:blank")
    page.go(server.address)
    page.until(SHOWN.format("overview"))
    assert time.monotonic() - began < 3 * FIRST_PAINT_S  # alone: below FIRST_PAINT_S
    assert "Rank 611 held the others up" in page.run("document.body.innerText")
    for name in ("traffic", "lateness", "collective", "topology"):
        page.run(f"document.getElementById('to-{name}').click()")
        page.until(SHOWN.format(name), name)
        drawn(page)
        assert colours(page) > 3
    tiles = pixels(page, 1)
    page.run(
        """(() => { const s = document.querySelector('main select');
        s.selectedIndex = 77; s.dispatchEvent(new Event('change')); })()"""
    )
    drawn(page)
    assert tiles != pixels(page, 1)
    assert "608" in page.run("document.querySelector('main table').innerText")
    end(page, server)


def test_a_rank_that_did_not_come_is_named(page, tmp_path):
    """The others wait; the page says for whom, and who is behind."""
    path = tmp_path / "hangs.trace"
    write(path, hanging(8, 9, absent=2))
    server = serve(NamedInputs(recordings=(path,)))
    opened(page, server, "waiting")
    said = page.run("document.querySelector('main pre').textContent")
    first = page.run("document.querySelector('main tbody tr').innerText")

    assert "rank 2" in said.lower()
    assert ["world", "2", "8"] == first.split()[:3]
    end(page, server)


def test_a_wrong_file_is_said_on_the_page(page, tmp_path):
    """Truncated at its head, or no recording at all."""
    path = tmp_path / "wrong.trace"
    path.write_bytes(b"\x00\xff" * 999)
    server = serve(NamedInputs(recordings=(path,)))
    page.go("about:blank")
    page.go(server.address)
    page.until("document.querySelector('main .error')")

    assert "does not begin as a recording" in page.run("document.body.innerText")
    end(page, server)
