"""Prove programs and plans; the only maker of Verified."""

from stretto.verify.plans import verify_plan
from stretto.verify.promise import verify
from stretto.verify.shape import aliases

__all__ = ["aliases", "verify", "verify_plan"]
