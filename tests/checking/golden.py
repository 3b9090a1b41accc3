"""Golden text: what was printed once and read by a person must be printed again."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Golden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """The golden files of one test; as a pytest fixture it is called `golden`.

    `golden(text)` compares with `<room>/<test>.txt`; `golden(text, "digests.txt")`
    with a file that is named. `pytest --update-golden` writes instead of comparing.
    """

    folder: Path
    room: str
    test: str
    update: bool = False

    def __call__(self, text: str, name: str | None = None) -> None:
        """Raise `AssertionError` with a diff unless the file holds this text."""
        path = self.folder / (name or f"{self.room}/{self._file_name()}.txt")
        if text and not text.endswith("\n"):
            text += "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        shown = path.relative_to(self.folder).as_posix()
        remedy = "if the new text is right: pytest --update-golden"
        if not path.exists():
            raise AssertionError(f"there is no golden file {shown}; {remedy}\n{text}")
        held = path.read_text(encoding="utf-8")
        if held != text:
            diff = difflib.unified_diff(
                held.splitlines(), text.splitlines(), "golden", "now", lineterm=""
            )
            raise AssertionError("\n".join([f"{shown} differs; {remedy}", *diff]))

    def _file_name(self) -> str:
        """Return the test's name, a parameter's id after a dash, as a file name."""
        plain = re.sub(r"[^A-Za-z0-9_.]+", "-", self.test.removeprefix("test_"))
        return plain.strip("-")
