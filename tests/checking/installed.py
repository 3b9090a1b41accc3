"""This tree as if it were installed: PyTorch finds its entry point."""

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
GROUP = "torch.backends"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRIES = PROJECT["entry-points"]


def search_path(folder, *before):
    """Return a PYTHONPATH of such an installation, whose metadata go to a folder."""
    info = Path(folder) / "site" / "stretto-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stretto\nVersion: 0\n")
    lines = [f"{name} = {place}" for name, place in ENTRIES[GROUP].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
    return os.pathsep.join(map(str, (info.parent, *before, ROOT / "src", ROOT)))
