"""Programs as other tools write them: MSCCL XML out and in, MSCCL++ plans in."""

from stretto.program.foreign.msccl import from_xml, to_xml
from stretto.program.foreign.mscclpp import from_plan

__all__ = ["from_plan", "from_xml", "to_xml"]
