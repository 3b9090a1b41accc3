"""How the documentation is built: `sphinx-build -n -W docs docs/_build`."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

_version = Path(__file__).parents[1] / "src" / "stretto" / "_version.py"

project = "stretto"
author = "The stretto project"
project_copyright = author
release = runpy.run_path(str(_version))["__version__"]

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

extensions = ["myst_parser", "sphinx.ext.autodoc"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Types have no pages of their own; errors do.
nitpick_ignore_regex = [("py:.*", r"(?!stretto\.errors).*")]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"stretto {release}"


def _as_rst(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn our docstrings, which are plain text with `code`, into what Sphinx reads."""
    made, is_block = [], False
    for line in lines:
        indented = line.startswith("    ") and what != "attribute"
        if indented and not is_block and (not made or not made[-1].strip()):
            made += ["::", ""]
            is_block = True
        elif line.strip() and not indented:
            is_block = False
        if is_block or line.lstrip().startswith((">>>", "...")):
            made.append(line.partition("  # doctest:")[0])
            continue
        pieces = line.split("`")
        pieces[::2] = [re.sub(r"([*|\\])", r"\\\1", one) for one in pieces[::2]]
        made.append("``".join(pieces))
    lines[:] = made


def setup(app: Any) -> None:
    """Add the hook."""
    app.connect("autodoc-process-docstring", _as_rst)
