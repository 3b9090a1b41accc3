"""Prove programs and plans; the only maker of Verified."""

from stretto.verify.kept import proved_once
from stretto.verify.plans import verify_plan
from stretto.verify.promise import verify

__all__ = ["proved_once", "verify", "verify_plan"]
