"""Have servers of vLLM and SGLang take a version, over HTTP, while they are paused.

    source.push(7)
    VllmRoutes("http://10.0.0.5:8000").update(7)

A server pauses, takes the version, and goes on. If anything fails in between, it is not
told to go on: its weights may be in pieces. Then whoever asked takes it out of service,
or updates it again: that ends the pause.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from stretto.errors import CallError, TransferError, TransferTimeout

__all__ = ["SglangRoutes", "VllmRoutes"]

WAYS = ("disk", "tensor", "distributed", "ipc")


class _Routes:
    def __init__(self, url: str, *, timeout: float = 60.0, key: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise CallError(f"url {url[:80]!r}; want http://HOST:PORT")
        self.url, self._timeout = url.rstrip("/"), timeout
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self.is_in_pieces = False
        """Whether an update began and did not end."""

    def _post(self, path: str, body: Any = None) -> Mapping[str, Any]:
        """Return a route's answer; TransferError: none, or it says that it failed."""
        data = json.dumps({} if body is None else body).encode()
        asked = urllib.request.Request(self.url + path, data, self._headers)
        what = f"{self.url}{path}"
        after = "; it stays paused" if self.is_in_pieces else ""
        try:
            with urllib.request.urlopen(asked, timeout=self._timeout) as answer:
                said = answer.read()
        except urllib.error.HTTPError as e:
            text = e.read()[:300].decode(errors="replace")
            raise TransferError(f"{what}: HTTP {e.code}: {text}{after}") from None
        except OSError as e:
            why = getattr(e, "reason", e)
            if isinstance(why, TimeoutError):
                within = f"no answer within {self._timeout} s"
                raise TransferTimeout(f"{what}: {within}{after}") from None
            raise TransferError(f"{what}: {why}{after}") from None
        try:
            found = json.loads(said) if said else {}
        except ValueError:
            found = None
        if not isinstance(found, Mapping):
            raise TransferError(f"{what}: an answer that is no JSON{after}")
        if found.get("success") is False or "error" in found:
            why = found.get("message") or found.get("error")
            raise TransferError(f"{what}: {str(why)[:300]}{after}")
        return found


class VllmRoutes(_Routes):
    """A server of vLLM, started with VLLM_SERVER_DEV_MODE=1."""

    def init(self, info: Mapping[str, Any]) -> None:
        """Have its workers meet the trainer: fields of `serving.vllm.InitInfo`."""
        self._post("/init_weight_transfer_engine", {"init_info": dict(info)})

    def update(self, version: int, *, mode: str = "keep", **info: Any) -> None:
        """Have it take a version between two steps; requests are kept meanwhile."""
        self._post(f"/pause?mode={mode}")
        self._post("/start_weight_update")
        self.is_in_pieces = True
        self._post("/update_weights", {"update_info": {"version": version, **info}})
        self._post("/finish_weight_update", {"weight_version": str(version)})
        self.is_in_pieces = False
        self._post("/resume")


class SglangRoutes(_Routes):
    """A server of SGLang."""

    def update(
        self, version: int, how: str, body: Mapping[str, Any], *, mode: str = "retract"
    ) -> None:
        """Have it take a version by one of its ways, with the fields that it wants.

        Caches of the old weights are flushed.
        """
        if how not in WAYS:
            raise CallError(f"update_weights_from_{how}; SGLang has {', '.join(WAYS)}")
        self._post("/pause_generation", {"mode": mode})
        self.is_in_pieces = True
        told = {"flush_cache": True, **body, "weight_version": str(version)}
        found = self._post(f"/update_weights_from_{how}", told)
        if found.get("success") is not True:
            raise TransferError(f"{self.url}: {str(found)[:300]}; it stays paused")
        self.is_in_pieces = False
        self._post("/continue_generation")
