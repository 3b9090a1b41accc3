"""When every transfer starts, on links that serve one at a time."""
