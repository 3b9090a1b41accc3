"""From a call to a launch: which plan it gets, and what is remembered of it."""
