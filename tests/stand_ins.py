"""What stands in for arrays of libraries that tests do without."""

import math


class TensorLike:
    """What a tensor on a GPU answers; who inherits says where it lies, and the rest."""

    shape: tuple = ()
    dtype = "torch.float32"

    def is_contiguous(self):
        return True

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        sizes = {"16": 2, "32": 4, "64": 8}
        return sizes.get(str(self.dtype)[-2:], 1)


class Elements(TensorLike):
    """Some elements at an address, bytes unless told: what a session asks for."""

    dtype = "torch.uint8"

    def __init__(self, address, count, itemsize=1):
        self.address, self.count, self.itemsize = address, count, itemsize

    def data_ptr(self):
        return self.address

    @property
    def shape(self):
        return (self.count,)

    def element_size(self):
        return self.itemsize
