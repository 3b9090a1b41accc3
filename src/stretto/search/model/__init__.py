"""A language model as one more way to change candidates: only if it is asked for."""
