"""A schedule as a readable file in the language."""
