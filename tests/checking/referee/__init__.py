"""A referee of plans, which shares nothing with the proof: it runs them by elements."""

from tests.checking.referee.calls import Call
from tests.checking.referee.judge import judge, judge_plan, program_verdict
from tests.checking.referee.machine import Machine
from tests.checking.referee.scopes import Scope, scopes
from tests.checking.referee.verdict import Outcome, Verdict

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
