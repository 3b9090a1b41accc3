"""Maximum flow on whole capacities: Dinic's algorithm, kept small and reusable.

One `FlowGraph` is built once and solved for many terminals: `reset` puts the capacities
back. Cuts are read from the last search, as the certificate of every bound.
"""

from __future__ import annotations

__all__ = ["FlowGraph"]


class FlowGraph:
    """A directed graph with residual capacities."""

    __slots__ = ("_adjacent", "_capacity", "_head", "_level", "_saved")

    def __init__(self, num_nodes: int) -> None:
        self._adjacent: list[list[int]] = [[] for _ in range(num_nodes)]
        self._head: list[int] = []
        self._capacity: list[int] = []
        self._saved: list[int] = []
        self._level: list[int] = []

    def add(self, src: int, dst: int, capacity: int) -> int:
        """Add an edge; return its index. Its residual twin is the next index."""
        index = len(self._head)
        self._head += (dst, src)
        self._capacity += (capacity, 0)
        self._saved += (capacity, 0)
        self._adjacent[src].append(index)
        self._adjacent[dst].append(index + 1)
        return index

    def change(self, edge: int, capacity: int) -> None:
        """Give an edge another capacity, from the next `reset` on."""
        self._saved[edge] = capacity

    def reset(self) -> None:
        """Forget all flow."""
        self._capacity[:] = self._saved

    def solve(self, source: int, sink: int, limit: int | None = None) -> int:
        """Return the maximum flow, or any flow of at least `limit`."""
        total = 0
        while limit is None or total < limit:
            self._level = self._search(source, sink)
            if self._level[sink] < 0:
                break
            total += self._block(source, sink)
        return total

    def source_side(self) -> set[int]:
        """Return the nodes that the last search of `solve` reached: a minimum cut."""
        return {v for v, level in enumerate(self._level) if level >= 0}

    def _search(self, source: int, sink: int) -> list[int]:
        head, capacity, adjacent = self._head, self._capacity, self._adjacent
        level = [-1] * len(adjacent)
        level[source] = 0
        queue = [source]
        for node in queue:
            deeper = level[node] + 1
            for edge in adjacent[node]:
                far = head[edge]
                if capacity[edge] and level[far] < 0:
                    level[far] = deeper
                    if far == sink:
                        return level
                    queue.append(far)
        return level

    def _block(self, source: int, sink: int) -> int:
        """Saturate every shortest path, depth first, without recursion."""
        head, capacity, adjacent = self._head, self._capacity, self._adjacent
        level = self._level
        at = [0] * len(adjacent)
        total = 0
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                pushed = min(capacity[e] for e in path)
                total += pushed
                first_full = len(path)
                for i in range(len(path) - 1, -1, -1):
                    edge = path[i]
                    capacity[edge] -= pushed
                    capacity[edge ^ 1] += pushed
                    if not capacity[edge]:
                        first_full = i
                node = head[path[first_full] ^ 1]
                del path[first_full:]
                continue
            edges, i = adjacent[node], at[node]
            while i < len(edges):
                edge = edges[i]
                if capacity[edge] and level[head[edge]] == level[node] + 1:
                    break
                i += 1
            at[node] = i
            if i < len(edges):
                path.append(edges[i])
                node = head[edges[i]]
            elif node == source:
                return total
            else:
                level[node] = -2  # a dead end: nothing passes here in this phase
                node = head[path.pop() ^ 1]
