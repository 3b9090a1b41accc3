"""Training that goes on whatever dies: states, steps that are committed once.

In: a model, its optimizer and its data. Out: batches, of which each is committed by all
ranks or by none. Never: a step twice, or a rank that goes on with another state.
"""

from __future__ import annotations

from stretto.torch.elastic.state import State
from stretto.torch.elastic.steps import steps
from stretto.torch.elastic.world import enable, is_enabled, stands_by

__all__ = ["State", "enable", "is_enabled", "stands_by", "steps"]
