"""Modules as trees, each read and parsed once."""

import ast
import functools


@functools.cache
def tree(path):
    """Return the tree of a file."""
    return ast.parse(path.read_text())
