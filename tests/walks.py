"""How a call walks through the modules, for tests that keep the walk short."""

import sys

ROOMS = tuple(f"stretto.{room}." for room in ("runtime", "arrays", "executors"))
TRANSFERS = tuple(f"stretto.{room}." for room in ("transfer", "fabric"))
PLACES = {
    "stretto.executors.cuda.codegen": "stretto.executors.cuda.codegen",
    "stretto.transfer.plans": "stretto.transfer.plans",
    "stretto.transfer.layouts": "stretto.transfer.plans",
}
"""Folders that are one place: what writes a kernel's text, what plans and proves."""


def place_of(module):
    """Return the place that a module is of."""
    return next((at for room, at in PLACES.items() if module.startswith(room)), module)


def walk_of(call, rooms=ROOMS):
    """Return the places that a call enters functions of, in order, while it is made.

    Functions that have no file, as those that dataclasses make, are not counted, nor
    are comprehensions.
    """
    walk = []

    def entered(frame, event, arg):
        if event != "call" or frame.f_code.co_name.startswith("<"):
            return
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(rooms) or frame.f_code.co_filename.startswith("<"):
            return
        module = place_of(module)
        if not walk or walk[-1] != module:
            walk.append(module)

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def returns(walk):
    """Return how often a walk returns to a module that it has left."""
    return len(walk) - len(set(walk))
