"""Answers about a run as a whole: what hangs, and what is to be known first."""

from __future__ import annotations

from stretto.studio.analysis.scene import Scene
from stretto.studio.ask.question import Question, Subject
from stretto.studio.ask.window import Answer, FilteredCalls
from stretto.watch import summarise, verdict


def whole(scene: Scene, question: Question, window: FilteredCalls) -> Answer:
    """Say the verdict, or what of it is about calls that do not end."""
    recording = scene.index.recording
    found = verdict(recording, summarise(recording))
    if question.subject is not Subject.HANGS:
        rows = tuple((one.about, one.text) for one in found)
        first = found[0].text if found else "Nothing was recorded."
        return Answer(text=first, columns=("about", "what"), rows=rows, view="overview")
    hangs = [one.text for one in found if one.about == "hang"]
    if not hangs:
        return Answer(text="Nothing hangs: no call waits for a rank.", view="overview")
    return Answer(text=" ".join(hangs), view="waiting")
