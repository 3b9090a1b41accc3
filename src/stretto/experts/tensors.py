"""Tensors of PyTorch for what NumPy holds, and the other way round."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

__all__ = ["LIBRARY", "TorchTensors"]

_RAW = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
}
"""Types that arrays hold as raw bits."""


class TorchTensors:
    """Results as tensors, which share the memory of arrays."""

    def made(self, array: NDArray[Any], dtype: str) -> Any:
        """Return a tensor of our elements."""
        tensor = torch.from_numpy(array)
        return tensor.view(_RAW[dtype]) if dtype in _RAW else tensor


LIBRARY = TorchTensors()
