"""How the documentation is built: `sphinx-build -n -W docs docs/_build`."""

import runpy
from pathlib import Path

_version = Path(__file__).parents[1] / "src" / "stretto" / "_version.py"

project = "stretto"
author = "The stretto project"
project_copyright = author
release = runpy.run_path(str(_version))["__version__"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"stretto {release}"
