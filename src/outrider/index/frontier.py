"""The open nodes of a tree that grows best-first: a heap, the likeliest path on top, equals first come first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def new_frontier(budget: int, width: int) -> tuple[Any, Any, Any]:  # pragma: no cover - compiled
    """Room for `width` children of each of `budget` nodes.

    Nodes are (capacity, 4) int64: token, parent, tag, depth; chances are (capacity, 2) float64: given the
    parent, and of the path. The heap holds indices into them from its third entry on; before that stand how
    many it holds, and how many were ever pushed.
    """
    capacity = budget * width + 1
    nodes = np.empty((capacity, 4), np.int64)
    chances = np.empty((capacity, 2), np.float64)
    heap = np.empty(capacity + 2, np.int64)
    heap[0] = 0
    heap[1] = 0
    return nodes, chances, heap


@njit(cache=True, nogil=True)
def push(
    frontier: Any, token: Any, parent: int, tag: int, depth: int, own: float, path: float
) -> int:  # pragma: no cover
    """Open a candidate; returns its index among all that were ever pushed."""
    nodes, chances, heap = frontier
    new = heap[1]
    nodes[new, 0] = token
    nodes[new, 1] = parent
    nodes[new, 2] = tag
    nodes[new, 3] = depth
    chances[new, 0] = own
    chances[new, 1] = path
    at = heap[0]
    heap[0] += 1
    heap[1] += 1
    while at > 0:
        above = (at - 1) >> 1
        if chances[heap[above + 2], 1] >= path:
            break
        heap[at + 2] = heap[above + 2]
        at = above
    heap[at + 2] = new
    return new


@njit(cache=True, nogil=True)
def pop(frontier: Any) -> int:  # pragma: no cover
    """Close the open node with the likeliest path, and return its index; -1 where none is open."""
    _, chances, heap = frontier
    count = heap[0]
    if count == 0:
        return -1
    best = heap[2]
    count -= 1
    heap[0] = count
    moved = heap[count + 2]
    path = chances[moved, 1]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count:
            left, right = heap[below + 2], heap[below + 3]
            if chances[right, 1] > chances[left, 1] or (
                chances[right, 1] == chances[left, 1] and right < left
            ):
                below += 1
        child = heap[below + 2]
        if chances[child, 1] < path or (chances[child, 1] == path and child > moved):
            break
        heap[at + 2] = child
        at = below
    heap[at + 2] = moved
    return best


@njit(cache=True, nogil=True)
def take(frontier: Any, node: int, out: Any, probabilities: Any, size: int) -> None:  # pragma: no cover
    """Enter an open node into the tree as its number `size`. Rows of `out`: token, parent, tag."""
    nodes, chances, _ = frontier
    out[0, size] = nodes[node, 0]
    out[1, size] = nodes[node, 1]
    out[2, size] = nodes[node, 2]
    probabilities[size] = chances[node, 0]


@njit(cache=True, nogil=True)
def is_end(token: int, stop_tokens: Any) -> bool:  # pragma: no cover
    """Whether nothing follows this token."""
    found = False
    for stop in stop_tokens:
        found = found or stop == token
    return found


@njit(cache=True, nogil=True)
def spell(out: Any, node: int, depth: int, query: Any, start: int) -> None:  # pragma: no cover
    """Write the path down to `node`, `depth` tokens, to `query` from `start` on."""
    for at in range(depth - 1, -1, -1):
        query[start + at] = out[0, node]
        node = out[1, node]
