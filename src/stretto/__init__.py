"""Collective communication for AI: written, proved, tuned and run from Python."""

from stretto._version import __version__

__all__ = ["__version__"]
