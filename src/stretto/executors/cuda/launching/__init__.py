"""A plan bound to a kind of call: kernels and copy engines, enqueued on streams."""
