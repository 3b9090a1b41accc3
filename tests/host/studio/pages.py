"""Pages of the studio in a browser: served, opened, waited for, looked at."""

import threading
import time

from tests.soon import soon

from stretto.studio import Studio, StudioServer

SHOWN = "document.querySelector('main [data-view=\"{}\"]')"


def serve(given):
    studio = Studio(given)
    studio.refresh()
    server = StudioServer(studio)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def end(page, server):
    """Leave a server's page, so that it has nobody to tell, and stop it."""
    page.go("about:blank")
    server.stop()


def opened(page, server, name):
    """Open a view by its link."""
    page.go("about:blank")
    page.go(server.address)
    page.until(SHOWN.format("overview"), "the first page")
    if name != "overview":
        page.run(f"document.getElementById('to-{name}').click()")
        page.until(SHOWN.format(name), name)
    drawn(page)
    text = page.run("document.body.innerText")
    assert "[object" not in text
    assert "undefined" not in text
    assert "NaN" not in text
    assert "error" not in page.run("document.querySelector('main').innerHTML")


def drawn(page):
    """Wait until what is to be drawn in the next frames has been."""
    page.run("new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))")


def colours(page, at=0):
    """Return how many colours a canvas of the view has, once that is more than one.

    An empty one has one: it may take some frames on a busy machine until it is drawn.
    """
    until = time.monotonic() + soon(2)
    while (seen := _colours(page, at)) <= 1 and time.monotonic() < until:
        drawn(page)
    return seen


def _colours(page, at):
    return page.run(
        f"""(() => {{
        const c = document.querySelectorAll('main canvas')[{at}];
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const seen = new Set();
        for (let i = 0; i < d.length; i += 4)
            seen.add(d[i] << 16 | d[i+1] << 8 | d[i+2]);
        return seen.size; }})()"""
    )
