"""Proofs of plans that were made before: by this user, on this machine, by this code.

A file says that this very plan was proved. It is believed as compiled code is believed,
which lies beside it: only the user can have written it, and only whole (`caches`). Its
path must tell all that the plan and its proof depend on, this code included.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from stretto import caches
from stretto.compiler.plan import Plan, ProvedPlan, pack, unpack
from stretto.compiler.verify.plans import Proved
from stretto.errors import PlanError, is_interruption

_PROVED, _REFUSED = b"proved\n", b"refused\n"


def proved_once(
    path: Path, prove: Callable[[], ProvedPlan], *, is_asked: Callable[[Plan], bool]
) -> ProvedPlan:
    """Return the plan that is kept there, or proved now: by one of several processes.

    What is kept is read as far as somebody looks at it. `is_asked` says whether it is
    for what was asked; one that is not, or cannot be read, is deleted. That there is no
    such plan is kept, too: a `PlanError` depends on nothing else.
    """
    mine: list[ProvedPlan] = []

    def make() -> bytes:
        try:
            mine.append(prove())
        except PlanError as e:
            if type(e) is not PlanError or getattr(e, "__notes__", None):
                raise
            return _REFUSED + json.dumps(str(e)).encode()
        return _PROVED + pack(mine[0].value)

    data = caches.once(path, make)
    if mine:
        return mine[0]
    try:
        if data.startswith(_REFUSED):
            refusal = str(json.loads(data.removeprefix(_REFUSED)))
        else:
            plan = unpack(data.removeprefix(_PROVED))
            if not is_asked(plan):
                raise ValueError(f"it is {plan.summary}")
            return Proved(plan)
    except Exception as e:
        if is_interruption(e):
            raise
        caches.discard(path, f"cannot be read: {type(e).__name__}: {e}")
        return prove()
    raise PlanError(refusal)
