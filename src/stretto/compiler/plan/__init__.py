"""The executable form: steps, schedules, layout, text, digest."""

from stretto.compiler.plan.layout import PlanLayout, layout
from stretto.compiler.plan.parser import parse_plan
from stretto.compiler.plan.parts import Reach, pack, reach, unpack
from stretto.compiler.plan.plan import BufferRun, Plan, Way, settled_hosts
from stretto.compiler.plan.proved import (
    SIDE_BY_SIDE,
    Batch,
    Batched,
    Copied,
    Halves,
    Lanes,
    ProvedPlan,
    hands_round_on_engine,
)
from stretto.compiler.plan.schedule import DIRECTIONS, MEMORIES, PROTOCOLS, Schedule
from stretto.compiler.plan.steps import (
    FLAG_BITS,
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
from stretto.program.ir import Handwritten, Verified

__all__ = [
    "DIRECTIONS",
    "FLAG_BITS",
    "MEMORIES",
    "PROTOCOLS",
    "SIDE_BY_SIDE",
    "Batch",
    "Batched",
    "BufferRun",
    "Copied",
    "Groups",
    "Halves",
    "Handwritten",
    "Lanes",
    "Loc",
    "Move",
    "Plan",
    "PlanLayout",
    "Primitive",
    "ProvedPlan",
    "Reach",
    "Schedule",
    "Signal",
    "Space",
    "Step",
    "Verified",
    "Wait",
    "Way",
    "hands_round_on_engine",
    "layout",
    "pack",
    "parse_plan",
    "primitive",
    "reach",
    "settled_hosts",
    "spell_step",
    "unpack",
]
