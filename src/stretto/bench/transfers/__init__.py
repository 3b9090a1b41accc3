"""Point to point: pairs, many to one, unequal shards, and caches of known models."""

from stretto.bench.transfers.contest import Refusal, TransferRow
from stretto.bench.transfers.schemes import MODELS, SCHEMES, measure

__all__ = ["MODELS", "SCHEMES", "Refusal", "TransferRow", "measure"]
