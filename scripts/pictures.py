"""Write the pictures of README.md and the guides; a test keeps them in step.

    python scripts/pictures.py [--check]

Each is what a user gets by the command beside it, so it shows what the code does now.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
FOLDER = ROOT / "docs" / "pictures"
PROGRAMS = {  # stretto show NAME --ranks N --svg FILE
    "two_shot_4": ("all_reduce/two_shot", 4),
    "ring_4": ("all_reduce/ring", 4),
    "double_binary_tree_8": ("all_reduce/double_binary_tree", 8),
}
MACHINES = ("h200x4", "dgx1")  # topology.draw(topology.load(NAME))


def pictures() -> dict[str, str]:
    """Return the text of every picture by its file's name."""
    from stretto import topology
    from stretto.program import algorithms
    from stretto.program.ir.drawing import svg

    made = {
        f"{name}.svg": svg(algorithms.get(algorithm).build(ranks))
        for name, (algorithm, ranks) in PROGRAMS.items()
    }
    for name in MACHINES:
        made[f"{name}.svg"] = topology.draw(topology.load(name))
    return made


if __name__ == "__main__":
    stale = []
    for name, text in pictures().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv[1:]:
                FOLDER.mkdir(exist_ok=True)
                path.write_text(text)
    print("stale:" if "--check" in sys.argv[1:] else "written:", *(stale or ["none"]))
    sys.exit(bool(stale) and "--check" in sys.argv[1:])
