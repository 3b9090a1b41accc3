"""How ranks meet, are told apart, hear of each other, and learn who died.

In: where this process is told to go. Out: a `Meeting`, by `join`, or by `launching`,
which starts the ranks. Never: what ranks then move. Both load the hub, so who calls
them imports them when ranks start.
"""

from stretto.fabric.meeting.environment import ADDRESS, Place, find_place

__all__ = ["ADDRESS", "Place", "find_place"]
