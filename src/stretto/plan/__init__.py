"""The executable form: steps, schedules, layout, text, digest."""

from stretto.plan.layout import Layout, layout
from stretto.plan.plan import (
    BufferRun,
    Loc,
    Move,
    Plan,
    Primitive,
    Signal,
    Space,
    Step,
    Wait,
    primitive,
)
from stretto.plan.schedule import DIRECTIONS, MEMORIES, PROTOCOLS, Schedule
from stretto.plan.text import parse_plan, print_plan, spell_step

__all__ = [
    "DIRECTIONS",
    "MEMORIES",
    "PROTOCOLS",
    "BufferRun",
    "Layout",
    "Loc",
    "Move",
    "Plan",
    "Primitive",
    "Schedule",
    "Signal",
    "Space",
    "Step",
    "Wait",
    "layout",
    "parse_plan",
    "primitive",
    "print_plan",
    "spell_step",
]
