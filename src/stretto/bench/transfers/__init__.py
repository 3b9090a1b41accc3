"""Point to point: pairs, many to one, unequal shards, and caches of known models."""

from stretto.bench.transfers import peers
from stretto.bench.transfers.models import MODELS
from stretto.bench.transfers.schemes import SCHEMES, Refusal, Row, measure

__all__ = ["MODELS", "SCHEMES", "Refusal", "Row", "measure", "peers"]
