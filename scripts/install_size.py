"""Print what each extra takes on disk, of what is installed here: MB by package.

    python scripts/install_size.py [EXTRA...]

README states the figures; packages that are not installed are named, not guessed.
"""

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def needed(texts: list[str], found: dict[str, float]) -> dict[str, float]:
    """Add what some requirements take, and what they need in turn."""
    for text in texts:
        one = Requirement(text)
        wanted = {"extra": ""}
        if one.marker and not any(
            one.marker.evaluate({**wanted, "extra": e}) for e in ("", *one.extras)
        ):
            continue
        name = one.name.lower().replace("_", "-")
        if name == "stretto":
            for extra in one.extras:
                needed(EXTRAS[extra], found)
        elif name not in found:
            found[name] = size(name)
            if found[name] >= 0:
                more = metadata.requires(name) or []
                needed([m for m in more if "extra ==" not in m], found)
                for extra in one.extras:
                    needed([m for m in more if f"extra == '{extra}'" in m], found)
    return found


def size(name: str) -> float:
    """Return the MB of an installed package; -1: it is not here."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return -1.0
    paths = [Path(str(f.locate())) for f in files]
    return sum(p.stat().st_size for p in paths if p.is_file()) / 1e6


if __name__ == "__main__":
    for extra in sys.argv[1:] or ["", *EXTRAS]:
        texts = PROJECT["dependencies"] + (EXTRAS[extra] if extra else [])
        found = needed(texts, {})
        here = {n: mb for n, mb in found.items() if mb >= 0}
        missing = [n for n in found if n not in here]
        largest = sorted(here.items(), key=lambda item: -item[1])[:6]
        print(
            f"{extra or 'stretto alone'}: {sum(here.values()):.0f} MB: "
            + ", ".join(f"{n} {mb:.0f}" for n, mb in largest)
            + (f"; not here: {', '.join(missing)}" if missing else "")
        )
