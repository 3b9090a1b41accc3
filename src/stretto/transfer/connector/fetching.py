"""The decode side of a scheduler: requests whose blocks lie at other engines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError
from stretto.transfer.connector.groups import CacheGroup, paired
from stretto.transfer.connector.steps import (
    EnginePlace,
    Heartbeat,
    Load,
    block_ids_of,
    params_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where a request's keys and values lie, as `kv_transfer_params` say."""

    engines: tuple[EnginePlace, ...]
    token: bytes
    blocks: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    """Tokens of a block there, by group."""
    tokens: int
    model: str

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Remote | None:
        """Return what parameters say; None: nothing is fetched. CallError: nonsense."""
        wants = params.get("do_remote_prefill") or params.get("do_remote_decode")
        if not wants or not params.get("remote_block_ids"):
            return None
        try:
            found = cls(
                engines=tuple(EnginePlace.of(one) for one in params["engines"]),
                token=bytes.fromhex(params["token"]),
                blocks=block_ids_of(params["remote_block_ids"]),
                sizes=tuple(int(size) for size in params["block_sizes"]),
                tokens=int(params["remote_num_tokens"]), model=str(params["model"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as e:
            raise CallError(
                f"kv_transfer_params that no engine of stretto made: "
                f"{type(e).__name__}: {e}; pass on what prefill returned, unchanged"
            ) from e
        if not found.engines or found.tokens < 0 or min(found.sizes, default=0) < 1:
            raise CallError("kv_transfer_params without engines, tokens or block sizes")
        return found


class Fetching:
    """See the module."""

    def __init__(self, groups: Sequence[CacheGroup], model: str, beat_s: float) -> None:
        self._groups, self._model = tuple(groups), model
        self._remotes: dict[str, Remote] = {}
        """Requests that something has to be fetched for, or is being."""
        self._past: set[str] = set()
        """Requests whose blocks were asked for once: never again."""
        self._local: dict[str, int] = {}
        self._workers: dict[str, int] = {}
        self._loads: dict[str, Load] = {}
        self._done: list[Heartbeat] = []
        self._dropped: list[str] = []
        self._beat_s, self._next_beat = beat_s, 0.0

    def come(self, request: Any) -> Remote | None:
        """Return where a request's blocks lie, if they are to be fetched."""
        name = request.request_id
        if name in self._past:
            return None
        found = self._remotes.get(name)
        if found is None:
            found = Remote.of(params_of(request))
            if found is None:
                return None
            if found.model != self._model or len(found.sizes) != len(self._groups):
                raise CallError(
                    f"keys and values of {found.model!r} in {len(found.sizes)} groups; "
                    f"want {self._model!r} in {len(self._groups)}"
                )
            if len(found.blocks) != len(found.sizes):
                raise CallError(f"blocks of {len(found.blocks)} groups, not all")
            self._remotes[name] = found
        return found

    def match(self, request: Any, computed: int, *, leave: int = 0) -> int:
        """Return how many tokens, beyond those that are here, lie elsewhere.

        So many of the prompt are left to be computed.
        """
        remote = self.come(request)
        if remote is None:
            return 0
        prompt = getattr(request, "num_prompt_tokens", None)
        prompt = int(request.num_tokens if prompt is None else prompt)
        self._local[request.request_id] = computed
        sizes = (*remote.sizes, *(group.block for group in self._groups))
        if any(computed % size for size in sizes):
            return 0  # in the midst of a block: what is there would be overwritten
        if any(group.window for group in self._groups):
            leave = 1  # its window begins where prefill's last one did
        found = min(remote.tokens, prompt - leave)
        each = zip(self._groups, remote.sizes, remote.blocks, strict=True)
        if any(_lacks(*one, computed, found) for one in each):
            return 0
        return max(0, found - computed)

    def allocated(self, request: Any, blocks: Any, count: int, *, waits: bool) -> None:
        """Note the blocks into which so many tokens of a request shall come."""
        remote, name = self.come(request), request.request_id
        if remote is None:
            return
        self._past.add(name)
        if not count:
            self.end(name)
            return
        ours = block_ids_of(blocks)
        start = self._local.get(name, min(remote.tokens, request.num_tokens) - count)
        if len(ours) != len(self._groups):
            raise CallError(f"blocks of {len(ours)} groups; want {len(self._groups)}")
        each = zip(self._groups, remote.sizes, remote.blocks, ours, strict=True)
        self._loads[name] = Load(
            request=name, engines=remote.engines, token=remote.token, waits=waits,
            groups=tuple(
                paired(group, size, there, here, start, start + count)
                for group, size, there, here in each
            ),
        )  # fmt: skip

    def end(self, name: str) -> None:
        """Have others keep nothing more for a request."""
        remote = self._remotes.pop(name, None)
        self._local.pop(name, None)
        self._workers.pop(name, None)
        if remote is not None:
            self._done.append(Heartbeat(engines=remote.engines, tokens=(remote.token,)))

    def loaded(self, name: str, workers: int) -> None:
        """Note that one of so many workers has a request."""
        self._workers[name] = self._workers.get(name, 0) + 1
        if self._workers[name] >= workers:
            self.end(name)

    def finished(self, request: Any) -> None:
        """Forget a request; what is under way for it is taken back."""
        name = request.request_id
        if name not in self._past:
            self.come(request)  # it was never allocated: nobody has to keep it
            self.end(name)
        else:  # the blocks rest until workers say that it has ended
            self.drop(name)
        self._past.discard(name)

    def drop(self, name: str) -> None:
        """Have workers take back what is under way for a request."""
        if name in self._past and name in self._remotes:
            self._dropped.append(name)

    def take(self) -> dict[str, Any]:
        """Return what workers are told in this step, once."""
        said = {
            "loads": tuple(self._loads.values()), "done": tuple(self._done),
            "dropped": tuple(self._dropped), "waiting": self._waiting(),
        }  # fmt: skip
        self._loads, self._done, self._dropped = {}, [], []
        return said

    def _waiting(self) -> tuple[Heartbeat, ...]:
        """Return whom to tell that their blocks are wanted, once in a while."""
        now = time.monotonic()
        if now < self._next_beat or not self._remotes:
            return ()
        self._next_beat = now + self._beat_s
        by_engines: dict[tuple[EnginePlace, ...], list[bytes]] = {}
        for remote in self._remotes.values():
            by_engines.setdefault(remote.engines, []).append(remote.token)
        return tuple(
            Heartbeat(engines=engines, tokens=tuple(some))
            for engines, some in by_engines.items()
        )

    @property
    def has_news(self) -> bool:
        """Return whether workers have to be told of something."""
        return bool(self._done or self._dropped)


def _lacks(
    group: CacheGroup, size: int, blocks: Sequence[int], start: int, stop: int
) -> bool:
    """Return whether the first token in the window of the next has no block there."""
    needed = max(start, stop - group.window + 1) // size
    return bool(group.window) and start < stop and not any(blocks[needed : needed + 1])
