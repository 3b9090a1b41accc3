"""How a call walks through the modules, for tests that keep the walk short."""

import sys

ROOMS = tuple(f"stretto.{room}." for room in ("calls", "arrays", "choice", "executors"))
CODEGEN = "stretto.executors.cuda.codegen"


def walk_of(call):
    """Return the modules that a call enters functions of, in order, while it is made.

    What writes a kernel's text is one place. Functions that have no file, as those that
    dataclasses make, are not counted, nor are comprehensions.
    """
    walk = []

    def entered(frame, event, arg):
        if event != "call" or frame.f_code.co_name.startswith("<"):
            return
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(ROOMS) or frame.f_code.co_filename.startswith("<"):
            return
        module = CODEGEN if module.startswith(CODEGEN) else module
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
