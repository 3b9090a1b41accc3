"""Answers: a sentence, a table, the view that shows more; computed, never written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stretto.studio.analysis.scene import Scene
from stretto.studio.ask.of_collectives import slowest, times, why_step
from stretto.studio.ask.of_links import links
from stretto.studio.ask.of_ranks import doing, late, why_rank
from stretto.studio.ask.of_runs import whole
from stretto.studio.ask.question import Question, Subject
from stretto.studio.ask.window import Answer, FilteredCalls, window_of

_WAYS: dict[Subject, Callable[[Scene, Question, FilteredCalls], Answer]] = {
    Subject.SLOWEST_LINKS: links,
    Subject.BUSIEST_LINKS: links,
    Subject.TRAFFIC: links,
    Subject.LATE_RANKS: late,
    Subject.SLOWEST: slowest,
    Subject.TIMES: times,
    Subject.WHY_STEP: why_step,
    Subject.WHY_RANK: why_rank,
    Subject.DOING: doing,
    Subject.HANGS: whole,
    Subject.SUMMARY: whole,
}


def answer(scene: Scene, question: Question) -> Answer:
    """Return the answer to a question about the first recording."""
    window = window_of(scene.index, question)
    found = _WAYS[question.subject](scene, question, window)
    return replace(found, question=str(question))


def packed(found: Answer) -> dict[str, Any]:
    """Return an answer as a page takes it."""
    return {
        "question": found.question,
        "text": found.text,
        "columns": list(found.columns),
        "rows": [list(row) for row in found.rows],
        "view": found.view,
    }
