"""A referee of plans, which shares nothing with the proof: it runs them by elements."""

from stretto.testing.referee.calls import Call
from stretto.testing.referee.judge import judge, judge_plan, program_verdict
from stretto.testing.referee.machine import Machine
from stretto.testing.referee.scopes import Scope, scopes
from stretto.testing.referee.verdict import Outcome, Verdict

__all__ = [
    "Call",
    "Machine",
    "Outcome",
    "Scope",
    "Verdict",
    "judge",
    "judge_plan",
    "program_verdict",
    "scopes",
]
