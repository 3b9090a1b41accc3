"""Who may read: those with the token, from this machine, by this machine's name."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page may do: run the files of this server, and ask this server."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The token of one server, and how it may be shown."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def cookie(self) -> str:
        """Return the cookie's name: ports of a machine share cookies."""
        return f"stretto_{self.port}"

    def set_cookie(self) -> str:
        """Return the header that lets a page ask without the token in its address."""
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def allows_host(self, host: str) -> bool:
        """Return whether a request was meant for us: no other name may lead here."""
        return host in (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request shows the token."""
        shown = headers.get("Authorization", "").removeprefix("Bearer ")
        return self.is_token(shown) or self.is_token(self._from_cookie(headers))

    def is_token(self, shown: str) -> bool:
        """Return whether a text is the token, in the same time for all that are not."""
        return hmac.compare_digest(shown.encode(), self.token.encode())

    def _from_cookie(self, headers: Mapping[str, str]) -> str:
        try:
            found = SimpleCookie(headers.get("Cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""
