"""Pages that list what there is list all of it; pictures show what the code does."""

import importlib
import re
import runpy
from pathlib import Path

import pytest

import stretto
from stretto import errors

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bSTRETTO_[A-Z]+(?:_[A-Z]+)*\b")
MACROS = {"STRETTO_COMPILE_ONLY", "STRETTO_CVT", "STRETTO_STEP", "STRETTO_STEPS"}
"""Of the kernels' text."""


def names_in(*folders):
    return {
        name
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for name in NAME.findall(path.read_text())
    }


def test_the_page_of_environment_variables_is_complete():
    """Every variable that the source reads has a row, and every row a reader."""
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    rows = re.findall(r"^\| `(STRETTO_\w+)` \|", page, re.MULTILINE)

    assert sorted(set(rows)) == sorted(rows)
    assert names_in("src/stretto") - MACROS == set(rows)


def test_pages_name_no_variable_that_nobody_reads():
    """What a guide says to set has an effect."""
    read = names_in("src/stretto", "benchmarks", "tests") - MACROS
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        assert set(NAME.findall(page.read_text())) - MACROS <= read, page


def test_the_readme_leads_on_by_ten_links_at_most():
    """Who reads the first page is not given a list of everything."""
    text = (ROOT / "README.md").read_text()
    _, _, after = text.partition("## Read on")

    assert 5 <= len(re.findall(r"(?<!!)\[[^\]]+\]\(", after)) <= 10


def test_pictures_are_those_of_the_code():
    """`python scripts/pictures.py` writes them."""
    made = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))["pictures"]()
    folder = ROOT / "docs" / "pictures"

    assert sorted(made) == sorted(f.name for f in folder.glob("*.svg"))
    for name, text in made.items():
        assert text == (folder / name).read_text(), name


def test_what_a_page_shows_is_there():
    """Pictures, and links to files of this tree; others are not followed."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_a_release_says_its_version_everywhere():
    """The version, the changelog's first heading, and the citation."""
    version = re.search(
        r'"(.+)"', (ROOT / "src/stretto/_version.py").read_text().splitlines()[-1]
    )[1]
    heads = re.findall(
        r"^## (\S+) \((\S+)\)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    cited = (ROOT / "CITATION.cff").read_text()

    assert not re.search("dev", version)
    assert (version, re.search(r'released: "(.+)"', cited)[1]) == heads[0]
    assert f"\nversion: {version}\n" in cited


API = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
DOCUMENTED = re.compile(r"^\.\. auto(?:function|class|module):: (\S+)$", re.MULTILINE)


@pytest.mark.parametrize("path", API, ids=lambda path: path.stem)
def test_the_reference_names_what_users_import(path):
    """Its page is of a module, and begins with an example; every name is there."""
    room = "stretto" if path.stem == "stretto" else f"stretto.{path.stem}"
    text = path.read_text()
    offered = importlib.import_module(room).__all__
    named = DOCUMENTED.findall(text)

    assert text.startswith(f"# {room}\n")
    assert "\n```python\n" in text
    assert any(name.rpartition(".")[2] in offered for name in named) or named == [room]
    for name in named:
        owner, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(owner), last), name
        if last in offered:
            assert owner == room, f"{name}; users import {room}.{last}"


def test_all_that_the_package_offers_is_in_the_reference():
    """Errors have a page of their own, which takes them all."""
    pages = "".join(path.read_text() for path in API)
    named = {name.rpartition(".")[2] for name in DOCUMENTED.findall(pages)}
    wanted = set(stretto.__all__) - set(errors.__all__) - {"__version__"}

    assert wanted <= named
