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


@jit(ORDERED, inline=True)
def _set_input(now, u, nodes, t):
    """Behind the state that step t reads, its input and the 1 of the bias."""
    for k in range(u.shape[1]):
        now[nodes + k] = u[t, k]
    now[nodes + u.shape[1]] = 1


@jit(ORDERED, inline=True)
def _some_panels(panels, now, following, products, out, keep, gain, leaky, code, loop, b, t, first, last):
    """The nodes of the panels first..last at step t, from `now` to `following` and to `out`."""
    multiply(now, panels, products, first, last, t & 1)
    begin, end = first * panels.shape[2], last * panels.shape[2]
    stop = min(end, out.shape[1])
    if code == RATIONAL_TANH and loop is None:
        # The usual case in one pass and in whole vectors: for a small network the passes cost as much as the product.
        # What stands behind the last node is written anew before it is read.
        for i in range(begin, end):
            following[i] = keep[i] * now[i] + gain[i] * rational_tanh(products[i])
    else:
        _other_states(now, following, products, keep, gain, leaky, code, loop, b, t, begin, stop)
    for i in range(begin, stop):
        out[t, i] = following[i]


# A function of its own: slices of arrays cost the counting of references, for small networks as much as the product.
@jit(ORDERED)
def _other_states(now, following, products, keep, gain, leaky, code, loop, b, t, begin, stop):
    x, before = products[begin:stop], now[begin:stop]
    activate(code, x)
    if leaky:
        leak(x, before, keep[begin:stop], gain[begin:stop])
    impair_nodes(x, before, loop, b, t, begin)
    for i in range(begin, stop):
        following[i] = products[i]


@jit(ORDERED)
def dense_serial(panels, vectors, products, u, out, keep, gain, leaky, code, loop, b, begin, end):
    """Steps begin..end of sequence b on one thread.

    `panels` hold [W | W_in | b] transposed; `vectors` (batch, 2, columns) state, input and the 1 of the bias, read and
    written in turn; `products` is (batch, nodes of all panels), u and out are (batch, time, ...). `keep`, `gain` and
    `vectors` are as long as all panels are wide, or longer.
    """
    even, odd, products, u, out = vectors[b, 0], vectors[b, 1], products[b], u[b], out[b]
    count, nodes = panels.shape[0], out.shape[1]
    for t in range(begin, end):
        if t & 1:
            _set_input(odd, u, nodes, t)
            _some_panels(panels, odd, even, products, out, keep, gain, leaky, code, loop, b, t, 0, count)
        else:
            _set_input(even, u, nodes, t)
            _some_panels(panels, even, odd, products, out, keep, gain, leaky, code, loop, b, t, 0, count)


@jit(ORDERED, parallel=True)
def dense_parallel(panels, vectors, products, u, out, keep, gain, leaky, code, loop, b, begin, end, parts):
    """As `dense_serial`, the panels of each step shared out among threads."""
    vectors, products, u, out, count = vectors[b], products[b], u[b], out[b], panels.shape[0]
    for t in range(begin, end):
        now, following = vectors[t & 1], vectors[1 - (t & 1)]
        _set_input(now, u, out.shape[1], t)
        for part in numba.prange(parts):
            first, last = count * part // parts, count * (part + 1) // parts
            _some_panels(panels, now, following, products, out, keep, gain, leaky, code, loop, b, t, first, last)
