"""Compile a proved program into a plan, under a schedule."""

from stretto.lower.pipeline import lower

__all__ = ["lower"]
