"""Questions in a small fixed language, and their answers; no model takes part."""

from stretto.studio.ask.answers import answer
from stretto.studio.ask.question import EXAMPLES, Question, Subject, parse_question
from stretto.studio.ask.translate import Translator, by_command, understood
from stretto.studio.ask.window import Answer

__all__ = [
    "EXAMPLES",
    "Answer",
    "Question",
    "Subject",
    "Translator",
    "answer",
    "by_command",
    "parse_question",
    "understood",
]
