"""The road of one call: known, or checked, chosen for, launched, and known from then.

Everything that moves arrays goes by it: the verbs, `send` and `recv`, exchanges of
counts. The very same arrays do not come here: their verb finds them known at once
(methods.py). In: whose call it is, what it is known by, and what examines it. Out: what
the caller gets. What a step needs of its rank lies in `CallRunner` (runner.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stretto.program.epilogues import Bound
from stretto.runtime.calls.answer import answer
from stretto.runtime.calls.choosing import launch_of
from stretto.runtime.calls.fused import fuse
from stretto.runtime.calls.known import again_of
from stretto.runtime.calls.known_epilogues import learn_epilogue, repeat_epilogue
from stretto.runtime.calls.requests.layout import MISS, look
from stretto.runtime.calls.requests.request import Request
from stretto.runtime.calls.runner import OWNER, CallRunner, Claim


def call(
    calls: CallRunner,
    key: tuple[Any, ...],
    x: Any,
    out: Any,
    examine: Callable[..., Request],
    given: tuple[Any, ...],
    epilogue: Bound | None = None,
) -> Any:
    """Make a call; its key is the verb, two identities, and all other arguments.

    `examine(calls, seen, *given)` returns its request; `seen`: how its arrays look.
    """
    # Known: its arrays look like those of an earlier call.
    seen, known, done = None, calls._calls, MISS
    if calls._known is known:
        if epilogue is not None:
            done = repeat_epilogue(calls, key, x, out, epilogue)
        elif (seen := look(key, x, out, calls._sessions)) is not None:
            how = known.get(seen[0])
            done = MISS if how is None else known.repeat(how, key, x, out, seen)
        if done is not MISS:
            return done
    # Checked: everything, before anything is sent.
    request = examine(calls, seen, *given)
    # Entered: one thread at a time, until the claim is given up.
    claim = Claim()
    try:
        calls._enter(request.collective, claim)
        session = calls._sessions.get(request.device) or calls._session(request.device)
        fused = None if epilogue is None else fuse(calls, request, epilogue)
        # Chosen: the launch of its kind; for a new kind an algorithm, proved and bound.
        launch = launch_of(calls, request, session, fused)
        # Launched: on a stream, with what an epilogue takes beside.
        if request.stream is not None:
            launch = partial(launch, stream=request.stream)  # type: ignore[call-arg]
        run = launch if fused is None else partial(launch, extra=fused.extra)  # type: ignore[call-arg]
        arrays = [None if a is None else a.flat for a in (request.x, request.out)]
        try:
            run(*arrays)
        except BaseException as e:
            raise calls._broke(e) from e.__cause__
        # Answered; and learned: the next one like it is known.
        result = answer(request, fused)
        if epilogue is not None:
            learn_epilogue(calls, key, x, out, epilogue, launch)
        else:
            seen = seen or look(key, x, out, calls._sessions)
            again = again_of(request, x, out, session, launch, calls._broke)
            known.learn(key, x, out, seen, again)
        return result
    finally:  # nothing is called before it is given up: a handler could break in
        if OWNER in calls._inside and calls._inside[OWNER] is claim:
            del calls._inside[OWNER]
        calls._known = {} if calls._inside else calls._usual
        if calls._group.broken[0]:  # also just now
            calls._known = {}
