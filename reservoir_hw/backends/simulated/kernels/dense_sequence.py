"""Steps of a dense network, one sequence at a time, compiled by numba."""

from __future__ import annotations

from reservoir_hw.backends.simulated.kernels.compiled import (
    ORDERED,
    RATIONAL_TANH,
    activate,
    impair_nodes,
    jit,
    leak,
    numba,
    rational_tanh,
)
from reservoir_hw.backends.simulated.kernels.panels import multiply


@jit(ORDERED)
def _next_vectors(vectors, u, nodes, t):
    """The vector that step t reads, its input and the 1 of the bias set, and the one that it writes."""
    now = vectors[t & 1]
    for k in range(u.shape[1]):
        now[nodes + k] = u[t, k]
    now[nodes + u.shape[1]] = 1
    return now, vectors[1 - (t & 1)]


@jit(ORDERED)
def _some_panels(panels, now, following, products, out, keep, gain, leaky, code, loop, b, t, first, last):
    multiply(now, panels, products, first, last, t & 1)
    begin, end = first * panels.shape[2], last * panels.shape[2]
    stop = min(end, out.shape[0])
    flat = products.reshape(-1)
    if code == RATIONAL_TANH and loop is None:
        # The usual case in one pass and in whole vectors: for a small network the passes cost as much as the product.
        # What stands behind the last node is written anew before it is read.
        for i in range(begin, end):
            following[i] = keep[i] * now[i] + gain[i] * rational_tanh(flat[i])
    else:
        x, before = flat[begin:stop], now[begin:stop]
        activate(code, x)
        if leaky:
            leak(x, before, keep[begin:stop], gain[begin:stop])
        impair_nodes(x, before, loop, b, t, begin)
        following[begin:stop] = x
    for i in range(begin, stop):
        out[i] = following[i]


@jit(ORDERED)
def dense_serial(panels, vectors, products, u, out, keep, gain, leaky, code, loop, b, begin, end):
    """Steps begin..end of sequence b on one thread.

    `panels` hold [W | W_in | b] transposed; `vectors` (batch, 2, columns) state, input and the 1 of the bias, read and
    written in turn; `products` is (batch, panels, width), u and out are (batch, time, ...). `keep`, `gain` and
    `vectors` are as long as all panels are wide, or longer.
    """
    for t in range(begin, end):
        now, following = _next_vectors(vectors[b], u[b], out.shape[2], t)
        _some_panels(
            panels, now, following, products[b], out[b, t], keep, gain, leaky, code, loop, b, t, 0, panels.shape[0]
        )


@jit(ORDERED, parallel=True)
def dense_parallel(panels, vectors, products, u, out, keep, gain, leaky, code, loop, b, begin, end, parts):
    """As `dense_serial`, the panels of each step shared out among threads."""
    count = panels.shape[0]
    for t in range(begin, end):
        now, following = _next_vectors(vectors[b], u[b], out.shape[2], t)
        for part in numba.prange(parts):
            first, last = count * part // parts, count * (part + 1) // parts
            _some_panels(
                panels, now, following, products[b], out[b, t], keep, gain, leaky, code, loop, b, t, first, last
            )


@jit(ORDERED, parallel=True)
def dense_sequences(panels, vectors, products, u, out, keep, gain, leaky, code, loop):
    """All steps of several sequences, each on one thread."""
    for b in numba.prange(u.shape[0]):
        dense_serial(panels, vectors, products, u, out, keep, gain, leaky, code, loop, b, 0, u.shape[1])
