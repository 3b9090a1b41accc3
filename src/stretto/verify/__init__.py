"""Prove programs and plans; the only maker of Verified."""

from stretto.verify.promise import verify

__all__ = ["verify"]
