"""Prove programs and plans; the only maker of Verified."""

from stretto.verify.plans import verify_plan
from stretto.verify.promise import verify

__all__ = ["verify", "verify_plan"]
