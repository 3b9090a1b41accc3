"""Other people's words into the language of questions: an interface, off by default.

A translator, a language model say, only writes a question; whoever asked is shown it,
and it is parsed and answered as if they had written it themselves.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Protocol

from stretto.errors import CallError
from stretto.studio.ask import question as language
from stretto.studio.ask.question import EXAMPLES, Question, parse_question

_SECONDS, _MOST_BYTES = 30, 4096


class Translator(Protocol):
    """Turns a text into a question of the language."""

    def __call__(self, text: str, /) -> str:
        """Return the question."""


def understood(text: str, translator: Translator | None = None) -> Question:
    """Return what is asked; what the grammar does not know is translated, if it can."""
    try:
        return parse_question(text)
    except CallError as e:
        if translator is None:
            raise
        written = translator(text)
        try:
            return parse_question(written)
        except CallError:
            said = f"{e} (the translator wrote {written[:120]!r}, which is no question)"
            raise CallError(said) from None


def by_command(command: Sequence[str]) -> Translator:
    """Return a translator that runs a program: it is told the language and the text."""

    def translate(text: str) -> str:
        asked = "\n".join([language.__doc__ or "", *EXAMPLES, "", text, ""])
        try:
            done = subprocess.run(
                list(command),
                input=asked,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as e:
            raise CallError(f"the translator {command[0]} failed: {e}") from None
        return done.stdout[:_MOST_BYTES].strip()

    return translate
