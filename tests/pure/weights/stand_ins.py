"""What DTensor is made of, as far as it is read: a mesh of any size in one process."""

__all__ = ["Mesh", "Replicate", "Shard", "Sharded", "_StridedShard"]


class Mesh:
    def __init__(self, sizes, place):
        self.sizes, self.place = sizes, place

    def get_coordinate(self):
        return list(self.place)

    def size(self, axis):
        return self.sizes[axis]


class Replicate:
    def is_replicate(self):
        return True


class Shard:
    def __init__(self, dim):
        self.dim = dim

    def is_replicate(self):
        return False


class _StridedShard(Shard):
    pass


class Sharded:
    """A DTensor: a whole tensor of which one rank has a part."""

    def __init__(self, whole, local, mesh, placements):
        self.shape, self._local = whole.shape, local
        self.device_mesh, self.placements = mesh, placements

    def to_local(self):
        return self._local
