"""Prove programs and plans; the only maker of Verified."""

from stretto.compiler.verify.kept import proved_once
from stretto.compiler.verify.order import Orders, orders
from stretto.compiler.verify.plans import check_closed, verify_plan
from stretto.compiler.verify.promise import verify

__all__ = [
    "Orders",
    "check_closed",
    "orders",
    "proved_once",
    "verify",
    "verify_plan",
]
