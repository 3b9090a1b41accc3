"""What serves a group where stretto cannot: Gloo on the CPU, NCCL on GPUs.

Both belong to the same group, and use its store. Gloo is made with the group, as its
ranks meet when it is made; NCCL when it is first needed. What goes to them is said
once for every verb, by the logger "stretto.torch".
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stretto.runtime.choice.bits import ANY, INVARIANT
from stretto.torch.faults import refusal
from stretto.torch.standins import Estimating
from stretto.torch.untraced import untraced

_log = logging.getLogger("stretto.torch")
_said: set[tuple[str, str]] = set()
_OLD_NAMES = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
"""What backends of torch up to 2.12 call what newer ones call by the first name."""
_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
_COUNTS_FROM_A_CHOSEN_NUMBER = _VERSION < (2, 15)
"""Whether the ranks of a group agree on where its calls are counted from."""


def say_once(verb: str, text: str, *, level: int = logging.WARNING) -> None:
    """Say once per process, and for every verb, what is not done by stretto."""
    if (verb, text) not in _said:
        _said.add((verb, text))
        _log.log(level, "%s: %s", verb, text)


@untraced
class _Gloo(Estimating, dist.ProcessGroupGloo):  # type: ignore[misc]
    """Gloo, which tells the group when torch changes the time-out, or asks for times.

    PyTorch up to 2.11 asks it, too, of calls on GPUs: it is the first backend there.
    """

    heard: Callable[[timedelta], None]

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.heard(timeout)
        super()._set_default_timeout(timeout)


@untraced
class OnDemand(Estimating):
    """NCCL, made when something is asked of it that only it can answer.

    torch asks every backend of a GPU whether it can be split, and connects those that
    can at once, which costs seconds and fails where ranks share a GPU.
    """

    supports_splitting = False
    supports_coalescing = False

    def __init__(self, make: Callable[[], Any], group: Callable[[], Any]) -> None:
        self._make, self.group = make, group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Return that tensors come from `stretto.torch.pool`, not from here."""
        return False

    def eager_connect_single_device(self, device: Any) -> None:
        """Connect nothing ahead."""


def _by_itself() -> tuple[Any, int, int]:
    """Return the store, rank and size of a group of one."""
    return dist.HashStore(), 0, 1


def _kind(device: Any) -> str:
    kind = str(torch.device(device).type)
    if kind not in ("cpu", "cuda"):
        raise refusal(
            f"no backend for tensors on {kind}; want them on the CPU or an NVIDIA GPU"
        )
    return kind


def refuse_to_vary(name: str, comm: Any) -> None:
    """Raise where others would add, in an order of theirs, and bits must not vary."""
    if name.startswith("allreduce") and comm.bits == INVARIANT:
        raise refusal(
            f"{name}: bits={INVARIANT!r}, and others than stretto would add here, in "
            f"an order of theirs; want dense tensors on the CPU or on GPUs that "
            f"stretto reaches, or bits={ANY!r}"
        )


class Fallback:
    """The other backends of one group."""

    def __init__(
        self,
        group: Any,
        store: Any,
        timeout: timedelta,
        on_timeout: Callable[[timedelta], None],
        *,
        alone: bool = False,
    ) -> None:
        """Make Gloo (collective), and register it with the group.

        Nothing is in the store of groups that were before, which they would believe. Of
        a group whose ranks may change it is `alone`: torch asks for it, and nothing is
        left to it.
        """
        self._group = group
        self._store = store
        self.timeout = timeout
        """How long calls may take, as torch has said."""
        self.devices = [torch.device("cpu")]
        """The types of devices that the group serves."""
        if torch.cuda.is_available():
            self.devices.append(torch.device("cuda"))
        self._alone = alone
        apart = dist.PrefixStore("gloo/", self._store)
        where = (apart, group.rank(), group.size())
        self._gloo: Any = _Gloo(*(_by_itself() if alone else where), timeout)
        self._gloo.heard, self._gloo.group = on_timeout, weakref.ref(group)
        if _COUNTS_FROM_A_CHOSEN_NUMBER:
            self._gloo._set_sequence_number_for_group()
        self._nccl: Any = None
        kinds = dist.ProcessGroup.BackendType
        group._register_backend(self.devices[0], kinds.GLOO, self._gloo)
        group._set_default_backend(kinds.GLOO)

    def backend(self, device: Any) -> Any:
        """Return what torch is told the backend for a device is.

        On GPUs that is a stand-in, so that torch does not connect NCCL ahead.
        """
        if _kind(device) == "cpu":
            return self._gloo
        return OnDemand(self._nccl_now, weakref.ref(self._group))

    def _served_by(self, device: Any) -> Any:
        return self._gloo if _kind(device) == "cpu" else self._nccl_now()

    def _nccl_now(self) -> Any:
        if self._nccl is None:
            self._nccl = self._make_nccl()
        return self._nccl

    def take_timeout(self, timeout: timedelta) -> None:
        """Take how long calls on GPUs may last; Gloo has heard it already."""
        self.timeout = timeout
        if self._nccl is not None:
            self._nccl._set_default_timeout(timeout)

    def _make_nccl(self) -> Any:
        if not torch.cuda.is_available() or not dist.is_nccl_available():
            raise refusal(
                "a call on a GPU that stretto leaves to NCCL, which this PyTorch does "
                "not have; want a PyTorch with CUDA"
            )
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self.timeout
        nccl = dist.ProcessGroupNCCL(
            dist.PrefixStore("nccl/", self._store),
            self._group.rank(),
            self._group.size(),
            options,
        )
        kinds = dist.ProcessGroup.BackendType
        self._group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
        return nccl

    def call(self, verb: str, device: Any, *args: Any) -> Any:
        """Make a call on the backend of a device; return its Work."""
        if self._alone:
            raise refusal(
                f"{verb} by another backend than stretto, in a group whose ranks may "
                "change; that one cannot: want dense tensors, on devices of stretto"
            )
        backend = self._served_by(device)
        method = getattr(backend, verb, None)
        if method is None:
            method = getattr(backend, _OLD_NAMES[verb])
        return method(*args)

    def close(self) -> None:
        """Give both back."""
        nccl, self._nccl, self._gloo = self._nccl, None, None
        if nccl is not None:
            nccl.shutdown()


def other_backends(
    group: Any,
    comm: Any,
    store: Any,
    timeout: timedelta,
    on_timeout: Callable[[timedelta], None],
    *,
    alone: bool,
) -> Fallback:
    """Return the other backends of a group that has met; without them it parts."""
    try:
        return Fallback(group, store, timeout, on_timeout, alone=alone)
    except BaseException:
        comm.close()
        raise
