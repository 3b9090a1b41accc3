"""Write the pictures of docs/guides/studio.md: the page as a browser shows it.

    PYTHONPATH=src:. python scripts/studio_pictures.py [NAME ...]

Wants Chromium. Look at every picture before it is kept.
"""

import contextlib
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.host.studio.browser import Page, browser
from tests.pure.studio.made import hanging, recording, tuning

from stretto.program import algorithms
from stretto.studio import NamedInputs, Studio, StudioServer
from stretto.trace import write

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures" / "studio"
WIDTH, HIGH = 1120, 1000
MOST_MOVED = 24  # of 255, in any channel of any point
SEEN = "document.querySelector('main [data-view=\"{}\"]')"
LATER = (  # a moment within the search of a page that is about something
    "document.querySelectorAll('input[type=range]').forEach(s => {{ s.value = {}; "
    "s.dispatchEvent(new Event('input')); }})"
)
CHOOSE = (
    "(() => {{ const s = document.querySelectorAll('main select')[{}]; "
    "s.selectedIndex = {}; s.dispatchEvent(new Event('change')); }})()"
)
HOVER = (
    "[...document.querySelectorAll('[data-panel=plan] .tied')]"
    ".find(d => d.textContent.includes('put r3')).click()"
)
ASK = (
    "document.getElementById('question').value = 'slowest link last minute top 4'; "
    "document.querySelector('#ask button').click()"
)
PICTURES = (  # name, run, view, theme, script
    ("overview_8_light", "few", "overview", "light", ""),
    ("links_8_light", "few", "topology", "light", ""),
    ("links_8_dark", "few", "topology", "dark", ""),
    ("links_1024_light", "many", "topology", "light", ""),
    ("links_1024_dark", "many", "topology", "dark", ""),
    ("links_1024_box_light", "many", "topology", "light", CHOOSE.format(0, 77)),
    ("traffic_8_dark", "few", "traffic", "dark", ""),
    ("traffic_1024_light", "many", "traffic", "light", ""),
    ("operations_8_light", "few", "table", "light", ""),
    ("lateness_8_light", "few", "lateness", "light", ""),
    ("lateness_1024_dark", "many", "lateness", "dark", ""),
    ("inside_8_light", "few", "collective", "light", LATER.format(480)),
    ("inside_8_time_dark", "few", "collective?by=time", "dark", ""),
    ("inside_1024_light", "many", "collective", "light", ""),
    ("program_8_light", "few", "program", "light", HOVER),
    ("program_8_dark", "few", "program", "dark", HOVER),
    ("compare_8_light", "few", "compare", "light", ""),
    ("tuning_dark", "few", "tune", "dark", ""),
    ("waiting_8_light", "hangs", "waiting", "light", ""),
    ("question_8_light", "few", "overview", "light", ASK),
)


def runs(folder: Path) -> dict[str, NamedInputs]:
    """Return what the pictures are of."""
    few = recording(8, 90, machine="h200x8", slow=(5,), title="train.py, 8 ranks")
    after = recording(
        8, 90, stretch=0.85, late=None, seed=9, title="the late rank mended"
    )
    many = recording(
        1024,
        60,
        machine="dgx_h200x128",
        late=611,
        slow=range(608, 616),
        steps_a_call=4,
        title="train.py, 1,024 ranks",
    )
    hangs = hanging(8, 30, absent=2)
    every = {"few": few, "after": after, "many": many, "hangs": hangs}
    for name, made in every.items():
        write(folder / f"{name}.trace", made)
    report = folder / "report.json"
    report.write_text(json.dumps(tuning()))
    program = algorithms.get("all_reduce/two_shot").build(8)
    return {
        "few": NamedInputs(
            recordings=(folder / "few.trace", folder / "after.trace"),
            program=program,
            source=program.source.rpartition(":")[0],
            reports=(report,),
        ),
        "many": NamedInputs(recordings=(folder / "many.trace",)),
        "hangs": NamedInputs(recordings=(folder / "hangs.trace",)),
    }


def main() -> None:
    """Write the pictures that are named, or all."""
    wanted = sys.argv[1:] or [picture[0] for picture in PICTURES]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        browser(folder) as page,
    ):
        for run, given in runs(Path(folder)).items():
            studio = Studio(given)
            studio.refresh()
            server = StudioServer(studio)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for name, of, view, theme, script in PICTURES:
                if of == run and name in wanted:
                    page.size(WIDTH, HIGH)
                    take(page, server, view, theme, script, FOLDER / f"{name}.png")
            page.go("about:blank")
            server.stop()


def take(
    page: Page, server: StudioServer, view: str, theme: str, script: str, path: Path
) -> None:
    """Show a view as it is asked for, and keep what is seen."""
    page.go("about:blank")
    page.go(server.address)
    page.until(SEEN.format("overview"))
    now = "document.documentElement.dataset.theme"
    if page.run(now) != theme:
        page.run("document.getElementById('theme').click()")
    page.run(f"location.hash = '#/{view}'")
    page.until(SEEN.format(view.partition("?")[0]))
    if script:
        page.run(script)
    time.sleep(0.6)
    end = page.run("document.querySelector('footer').getBoundingClientRect().bottom")
    page.picture(path, x=0, y=0, width=WIDTH, height=min(HIGH, end))
    smaller(path)
    assert not page.complaints, page.complaints
    print(path.name, path.stat().st_size)


def smaller(path: Path) -> None:
    """Keep 256 colours, where Pillow is there and none moves so that it shows."""
    with contextlib.suppress(ModuleNotFoundError):
        from PIL import Image, ImageChops

        with Image.open(path) as shot:
            picture = shot.convert("RGB")
        few = picture.quantize(
            256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        moved = ImageChops.difference(picture, few.convert("RGB")).getextrema()
        kept = few if max(most for _, most in moved) <= MOST_MOVED else picture
        kept.save(path, optimize=True)


if __name__ == "__main__":
    main()
