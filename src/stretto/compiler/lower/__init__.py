"""Compile a proved program into a plan."""

from stretto.compiler.lower.pipeline import lower

__all__ = ["lower"]
