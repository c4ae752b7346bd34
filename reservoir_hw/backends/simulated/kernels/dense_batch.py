"""Batched steps of a dense network: a matrix product of our own, compiled by numba.

BLAS would share every small product out among threads of its own, and these wait for one another at every step and
spin beside torch's. Here a thread drives some of the sequences through all of their steps alone.
"""

from __future__ import annotations

from reservoir_hw.backends.simulated.kernels.compiled import ORDERED, ROWS, activate_row, jit
from reservoir_hw.backends.simulated.kernels.panels import multiply_tile


@jit(ORDERED)
def dense_batch(panels, vectors, products, u, out, keep, gain, leaky, code, loop, first, last):
    """All steps of the sequences first..last of a batch on one thread; `first` is a multiple of `ROWS`.

    `panels` hold [W | W_in | b] transposed. `vectors` (sequences, columns) hold state, input and the 1 of the bias;
    they and `products` (sequences, nodes of all panels) have a multiple of `ROWS` rows. u and out are
    (batch, time, ...).
    """
    nodes, inputs, width = out.shape[2], u.shape[2], panels.shape[2]
    for t in range(u.shape[1]):
        for b in range(first, last):
            for i in range(inputs):
                vectors[b, nodes + i] = u[b, t, i]
        for p in range(panels.shape[0]):
            for b in range(first, last, ROWS):
                multiply_tile(vectors[b : b + ROWS], panels[p], products[b : b + ROWS, p * width : (p + 1) * width])
        for b in range(first, last):
            activate_row(products[b, :nodes], vectors[b, :nodes], out[b, t], keep, gain, leaky, code, loop, b, t)
