"""Requests whose keys and values are put to an engine while they are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stretto.errors import LayoutError
from stretto.transfer.connector.steps import Save, block_ids_of, params_of


@dataclass(slots=True, kw_only=True)
class _Push:
    params: Any
    blocks: tuple[int, ...]
    tokens: int
    """Tokens of the prompt."""


class Pushing:
    """Each is put in the step that computes the last of its prompt, whole."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Push] = {}

    def allocated(self, request: Any, blocks: Any) -> None:
        """Note the blocks of a request that names where it is to be put."""
        groups = block_ids_of(blocks)
        if len(groups) > 1:
            raise LayoutError(f"a push of {len(groups)} groups; want one, or a pull")
        prompt = getattr(request, "num_prompt_tokens", None)
        self._under_way[request.request_id] = _Push(
            params=params_of(request), blocks=groups[0],
            tokens=int(request.num_tokens if prompt is None else prompt),
        )  # fmt: skip

    def forget(self, name: str) -> None:
        """Put nothing for a request that has ended, or gives its blocks away."""
        self._under_way.pop(name, None)

    def take(self, output: Any) -> tuple[Save, ...]:
        """Return what is put in this step: `output` is the scheduler's, or None."""
        if output is not None:
            self._grow(getattr(output, "scheduled_cached_reqs", None))
        ready = _computed(output)
        saves = []
        for name, push in list(self._under_way.items()):
            if output is None or ready.get(name, 0) >= push.tokens:
                del self._under_way[name]
                saves.append(_save(name, push))
        return tuple(saves)

    def _grow(self, cached: Any) -> None:
        """Add blocks that requests were given since."""
        if cached is None:
            return
        for name, fresh in zip(cached.req_ids, cached.new_block_ids, strict=True):
            push = self._under_way.get(name)
            if push is not None and fresh and name not in cached.resumed_req_ids:
                push.blocks += block_ids_of(fresh)[0]


def _computed(output: Any) -> dict[str, int]:
    """Return how many tokens of each request are there when this step has ended."""
    if output is None:
        return {}
    scheduled = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    before = {one.req_id: one.num_computed_tokens for one in output.scheduled_new_reqs}
    before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return {name: before.get(name, 0) + count for name, count in scheduled.items()}


def _save(name: str, push: _Push) -> Save:
    return Save(
        request=name, engine=str(push.params["push_to"]),
        remote_blocks=tuple(push.params["push_blocks"]), local_blocks=push.blocks,
        tokens=push.tokens, lease=bytes.fromhex(push.params.get("push_lease", "")),
    )  # fmt: skip
