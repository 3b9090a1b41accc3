"""A plan laid out as a table of words, and the interpreters and kernels that run it."""
