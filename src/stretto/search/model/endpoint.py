"""Ask a language model behind any OpenAI-compatible endpoint, within a budget.

Nothing is contacted unless a URL is given. The key comes from an environment variable,
and is neither stored nor said. What is answered is data: text to be parsed.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stretto.errors import CallError

__all__ = ["KEY", "Allowance", "Endpoint"]

KEY = "STRETTO_LLM_KEY"
"""The environment variable with the key."""
_MOST_ANSWER = 1 << 20
_TRIES = 3


@dataclass(slots=True)
class Allowance:
    """What may be spent, and what has been."""

    calls: int = 100
    tokens: int = 1_000_000
    money: float = 5.0
    price: float = 10.0
    """For a million tokens, in and out alike."""
    used_calls: int = 0
    used_tokens: int = 0

    @property
    def spent(self) -> float:
        """Return the money that was spent."""
        return self.used_tokens * self.price / 1e6

    def left(self) -> str:
        """Return why nothing may be asked any more, or nothing."""
        if self.used_calls >= self.calls:
            return f"{self.calls} calls were made"
        if self.used_tokens >= self.tokens:
            return f"{self.used_tokens} tokens were used, of {self.tokens}"
        if self.spent >= self.money:
            return f"{self.spent:.2f} was spent, of {self.money:.2f}"
        return ""


class Endpoint:
    """Where questions go."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        budget: Allowance | None = None,
        deadline_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Take note of where a model is; nothing is contacted yet."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CallError(f"--llm {url!r}: want http(s)://HOST[:PORT][/PATH]")
        if parts.username or parts.password:
            raise CallError(f"--llm: want no key in the URL, but in ${KEY}")
        self._parts, self._model, self._deadline_s = parts, model, deadline_s
        self._sleep, self._key = sleep, environ.get(KEY, "")
        self.budget = budget or Allowance()
        self.failed = ""
        """Why the last question was not answered."""

    def ask(self, question: str) -> str | None:
        """Return an answer; None, and `failed` says why, where there is none."""
        self.failed = self.budget.left()
        if self.failed:
            return None
        body = json.dumps(
            {"model": self._model, "temperature": 1.0,
             "messages": [{"role": "user", "content": question}]}
        ).encode()  # fmt: skip
        for attempt in range(_TRIES):
            if self.budget.left():
                break
            if attempt:
                self._sleep(2.0**attempt)
            self.budget.used_calls += 1
            try:
                status, answer = self._post(body)
            except (OSError, http.client.HTTPException, ValueError) as e:
                self.failed = f"{self._parts.hostname}: {type(e).__name__}: {e}"[:200]
                continue
            if status == 200:
                return self._text(question, answer)
            self.failed = f"{self._parts.hostname} answered {status}: {answer[:120]!r}"
            if status not in (408, 429) and status < 500:
                break
        return None

    def _post(self, body: bytes) -> tuple[int, bytes]:
        host, port = str(self._parts.hostname), self._parts.port
        line: http.client.HTTPConnection
        if self._parts.scheme == "https":
            how = ssl.create_default_context()
            line = http.client.HTTPSConnection(
                host, port, timeout=self._deadline_s, context=how
            )
        else:
            line = http.client.HTTPConnection(host, port, timeout=self._deadline_s)
        until = time.monotonic() + self._deadline_s
        head = {"Content-Type": "application/json"}
        if self._key:
            head["Authorization"] = f"Bearer {self._key}"
        try:
            path = self._parts.path.rstrip("/") + "/chat/completions"
            line.request("POST", path, body, head)
            answer = line.getresponse()
            found = bytearray()
            while more := answer.read1(65536):
                found += more
                if len(found) > _MOST_ANSWER:
                    raise ValueError(f"more than {_MOST_ANSWER} bytes")
                if time.monotonic() > until:
                    raise TimeoutError(f"not whole in {self._deadline_s:g} s")
            return answer.status, bytes(found)
        finally:
            line.close()

    def _text(self, question: str, answer: bytes) -> str | None:
        """Return what an answer says; it costs, whatever it says."""
        guessed = (len(question) + len(answer)) // 4
        try:
            found: Any = json.loads(answer)
            used = found.get("usage") or {}
            tokens = used.get("total_tokens")
            text = found["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            tokens, text = None, None
        counted = isinstance(tokens, int) and 0 <= tokens < 10**9
        self.budget.used_tokens += int(tokens) if counted and tokens else guessed
        if not isinstance(text, str):
            self.failed = f"{self._parts.hostname} answered what is no completion"
            return None
        return text
