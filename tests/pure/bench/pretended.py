"""PyTorch, as if what lies on the host were on a GPU."""

import types

import torch


class Torch:
    """All of PyTorch, and so much of its GPUs as peers ask for."""

    capturing = False

    def __init__(self):
        self.cuda = types.SimpleNamespace(
            synchronize=lambda: None, is_current_stream_capturing=lambda: self.capturing
        )

    def __getattr__(self, name):
        return getattr(torch, name)
