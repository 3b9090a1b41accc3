"""Files and object stores: memory with a name and a layout that outlives its process.

In: pieces of tensors, as plans cut them. Out: the same bytes, in files or objects, with
their layout and sums beside. Never: which pages of a cache are worth keeping.
"""

from stretto.transfer.stores.checkpoint import load, save
from stretto.transfer.stores.files import Files
from stretto.transfer.stores.objects import Objects
from stretto.transfer.stores.store import Missing, Store, StoreError

__all__ = ["Files", "Missing", "Objects", "Store", "StoreError", "load", "save"]
