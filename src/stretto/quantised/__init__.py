"""Sums whose data are quantised on the wire: a byte an element, and a scale a block.

Two exchanges of bytes, both proved: everybody's parts to their owners (all_to_all), and
the owners' sums to everybody (all_gather). Between them each rank adds, in float32 and
in order of ranks, what it can read from the wire. All ranks end with the same bits.
"""

from stretto.quantised.call import bound
from stretto.quantised.wire import GROUP, WIRES, wire_in

__all__ = ["GROUP", "WIRES", "bound", "wire_in"]
