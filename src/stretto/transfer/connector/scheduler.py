"""The scheduler's side: which tokens need not be computed, and which blocks rest.

Names and meanings are those of vLLM's `KVConnectorBase_V1`. A request is anything with
`request_id`, `num_tokens` and `kv_transfer_params`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import CallError
from stretto.transfer.connector.defaults import Defaults
from stretto.transfer.connector.steps import (
    Load,
    Save,
    Step,
    Told,
    block_ids_of,
    params_of,
)

__all__ = ["Scheduler"]


class Scheduler(Defaults):
    """Decides; moves nothing. `engines` are the names of this instance's workers."""

    def __init__(
        self, engines: Sequence[str], *, block: int, role: str, keep_s: float = 30.0
    ) -> None:
        """`role` is "prefill" or "decode"; blocks are kept for decode so long."""
        if role not in ("prefill", "decode"):
            raise CallError(f"role={role!r}; want 'prefill' or 'decode'")
        self._engines, self._block, self._role = tuple(engines), block, role
        self._keep_s = keep_s
        self._loads: list[Load] = []
        self._saves: list[Save] = []
        self._kept: dict[str, float] = {}
        self._spare: dict[str, list[bytes]] = {name: [] for name in engines}
        """Leases that workers have told of."""
        self._leased: dict[str, Mapping[str, bytes]] = {}
        self._late: list[str] = []
        self._preempted: list[str] = []

    @property
    def requires_kv_delivery(self) -> bool:
        """Return whether somebody waits for what is computed here."""
        return self._role == "prefill"

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Return how many tokens come from elsewhere, and that they come meanwhile."""
        params = params_of(request)
        if self._role != "decode" or "blocks" not in params:
            return 0, False
        more = max(0, int(params["tokens"]) - num_computed_tokens)
        return more, more > 0

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        """Note the blocks into which a request's tokens shall come, or from which."""
        params, block_ids = params_of(request), block_ids_of(blocks)
        if self._role == "decode" and num_external_tokens:
            count = -(-int(params["tokens"]) // self._block)
            self._loads.append(
                Load(
                    request=request.request_id, engines=tuple(params["engines"]),
                    remote_blocks=tuple(params["blocks"]),
                    local_blocks=block_ids[:count], tokens=int(params["tokens"]),
                    lease={n: bytes.fromhex(t) for n, t in params["leases"].items()},
                )
            )  # fmt: skip
        elif self._role == "prefill" and "push_to" in params:
            self._saves.append(
                Save(
                    request=request.request_id, engine=str(params["push_to"]),
                    remote_blocks=tuple(params["push_blocks"]),
                    local_blocks=block_ids, tokens=int(request.num_tokens),
                    lease=bytes.fromhex(params.get("push_lease", "")),
                )
            )  # fmt: skip

    def build_connector_meta(self, scheduler_output: Any = None) -> Step:
        """Return what the workers do in this step, once."""
        step = Step(
            loads=tuple(self._loads), saves=tuple(self._saves), kept=self._leased,
            late=tuple(self._late), preempted=tuple(self._preempted),
        )  # fmt: skip
        self._loads, self._saves, self._leased = [], [], {}
        self._late, self._preempted = [], []
        return step

    def preempt(self, request: str) -> None:
        """Have workers take back what was begun for a request."""
        self._preempted.append(request)

    def has_pending_push_work(self) -> bool:
        """Return whether workers have to be told of something."""
        return bool(self._saves or self._leased or self._late or self._preempted)

    def request_finished(
        self, request: Any, block_ids: Sequence[int],
        leases: Mapping[str, bytes] | None = None,
    ) -> tuple[bool, dict[str, Any] | None]:  # fmt: skip
        """Return whether blocks must rest until decode has them, and how it finds them.

        `leases` are the workers' `Worker.lease`; without them, ones that they have told
        of, which they are told of in the next step. The parameters are JSON.
        """
        if self._role != "prefill" or "push_to" in params_of(request):
            return False, None
        if leases is None and all(self._spare.values()):
            leases = {name: some.pop() for name, some in self._spare.items()}
            self._leased = {**self._leased, request.request_id: leases}
        self._kept[request.request_id] = time.monotonic() + self._keep_s
        return True, {
            "engines": list(self._engines),
            "blocks": list(block_ids_of(block_ids)),
            "tokens": int(request.num_tokens),
            "leases": {n: t.hex() for n, t in (leases or {}).items()},
        }

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[Sequence[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return the same of blocks by group: a cache here has one."""
        return self.request_finished(request, block_ids_of(block_ids))

    def update_connector_output(self, connector_output: Any = ()) -> list[str]:
        """Forget requests that were fetched; return those that nobody fetched in time.

        Workers end their leases in the next step, and `get_finished` names them.
        """
        sent = getattr(connector_output, "finished_sending", connector_output)
        for request in sent or ():
            self._kept.pop(request, None)
        told = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(told, Told):
            for name, some in told.leases.items():
                self._spare.setdefault(name, []).extend(some)
        now = time.monotonic()
        late = [r for r, until in self._kept.items() if until <= now]
        for request in late:
            del self._kept[request]
        self._late += late
        return late

    def take_events(self) -> list[Any]:
        """Return nothing: caches here have no events."""
        return []
