"""The executable form: steps, schedules, layout, text, digest."""

from stretto.plan.layout import Layout, layout
from stretto.plan.parser import parse_plan
from stretto.plan.parts import Reach, pack, reach, unpack
from stretto.plan.plan import BufferRun, Plan, Way, settled_hosts
from stretto.plan.schedule import DIRECTIONS, MEMORIES, PROTOCOLS, Schedule
from stretto.plan.steps import (
    Groups,
    Loc,
    Move,
    Primitive,
    Signal,
    Space,
    Step,
    Wait,
    primitive,
    spell_step,
)

__all__ = [
    "DIRECTIONS",
    "MEMORIES",
    "PROTOCOLS",
    "BufferRun",
    "Groups",
    "Layout",
    "Loc",
    "Move",
    "Plan",
    "Primitive",
    "Reach",
    "Schedule",
    "Signal",
    "Space",
    "Step",
    "Wait",
    "Way",
    "layout",
    "pack",
    "parse_plan",
    "primitive",
    "reach",
    "settled_hosts",
    "spell_step",
    "unpack",
]
