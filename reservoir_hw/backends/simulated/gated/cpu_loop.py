"""The time loop of the gated echo state network on the CPU, compiled by numba (Di Sarli et al. 2022, eq. 6).

A step is two products: one for both gates, whose weights lie on top of each other, and one for the candidate state,
which needs the reset gate first. As in `esn/cpu_loop.py` every choice made here depends on the sizes of the network
and of the batch, never on the number of time steps: a run in one piece, in chunks or step by step gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array, issparse, vstack

from reservoir_hw.backends.simulated.esn.cpu_loop import (
    MATRIX_BATCH,
    THREADED_DENSE,
    padded,
    padded_csr,
    share_out_sequences,
)
from reservoir_hw.backends.simulated.kernels.compiled import (
    LANES,
    ORDERED,
    ROWS,
    activate,
    activation_code,
    add_input,
    dense_rows,
    impair,
    impair_nodes,
    jit,
    numba,
    sparse_rows,
)
from reservoir_hw.backends.simulated.kernels.panels import multiply_tile, panels_of
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.core.threads import AdaptiveThreads, cores, threads_here
from reservoir_hw.networks.weights import EsnWeights, GatedWeights

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class DenseWeights:
    """[W | W_in | b | 0] of both gates and of the candidate state, padded to whole vectors; made by `prepare`.

    `gates` holds the reset gate in the first half of its rows and the update gate in the other.
    """

    nodes: int
    inputs: int
    dtype: np.dtype[Any]
    gates: Array
    candidate: Array
    threads: int
    adaptive: AdaptiveThreads = field(default_factory=AdaptiveThreads, repr=False)

    @cached_property
    def panels(self) -> tuple[Array, Array]:
        """The gates and the candidate cut into panels, for products with several sequences at once."""
        columns = self.nodes + self.inputs + 1
        return panels_of(self.gates[:, :columns].T, self.dtype), panels_of(self.candidate[:, :columns].T, self.dtype)

    def drive(self, u: Array, state: Array, out: Array, code: int, loop: LoopTerms | None) -> None:
        """Fill `out` with the states; `code` is that of the activation."""
        if len(u) >= MATRIX_BATCH:
            self._drive_batch(u, state, out, code, loop)
            return
        nodes, biased = self.nodes, self.nodes + self.inputs
        products = np.empty(len(self.gates), self.dtype)
        # The threads meet twice in a step, so there must be twice the work.
        threads = threads_here(self.threads)
        threaded = threads > 1 and 3 * nodes**2 >= 2 * THREADED_DENSE
        for b in range(len(u)):
            # The state, and the state behind the reset gate, each followed by the input and the 1 of the bias.
            now, gated = np.zeros((2, self.gates.shape[1]), self.dtype)
            now[:nodes] = state[b]
            now[biased] = gated[biased] = 1
            fixed = (self.gates, self.candidate, now, gated, products)
            if threaded:
                advance = partial(_advance, fixed, u[b], out[b], code, _part(loop, b))
                self.adaptive.drive(advance, u.shape[1], threads)
            else:
                _dense_serial(*fixed, u[b], out[b], code, _part(loop, b))

    def _drive_batch(self, u: Array, state: Array, out: Array, code: int, loop: LoopTerms | None) -> None:
        batch, steps, inputs = u.shape
        nodes, rows = self.nodes, -(-batch // ROWS) * ROWS
        # Rows of state, input and the 1 of the bias; the rows beyond the batch are multiplied in vain.
        now, gated = np.zeros((2, rows, self.gates.shape[1]), self.dtype)
        now[:batch, :nodes] = state
        now[:, nodes + inputs] = gated[:, nodes + inputs] = 1
        products = np.empty((rows, len(self.gates)), self.dtype)
        drive = partial(_dense_batch, *self.panels, now, gated, products, u, out, code, loop)
        share_out_sequences(drive, batch, 3 * nodes * now.size // 2 * steps, self.threads)


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """Row starts, columns, values, transposed W_in and bias of both gates and of the candidate; made by `prepare`."""

    nodes: int
    dtype: np.dtype[Any]
    gates: tuple[Array, Array, Array, Array, Array]
    candidate: tuple[Array, Array, Array, Array, Array]

    def drive(self, u: Array, state: Array, out: Array, code: int, loop: LoopTerms | None) -> None:
        """Fill `out` with the states; `code` is that of the activation."""
        gates, gated = np.empty(2 * self.nodes, self.dtype), np.empty(self.nodes, self.dtype)
        for b in range(len(u)):
            terms = _part(loop, b)
            _sparse_serial(self.gates, self.candidate, gates, gated, u[b], state[b].copy(), out[b], code, terms)


def prepare(weights: GatedWeights, dtype: DTypeLike = np.float32) -> DenseWeights | SparseWeights:
    """Lay the weights out for `run`, in float32 or float64; done once per network.

    They are kept as CSR where all three recurrent matrices are, else dense.
    """
    kind = np.dtype(dtype)
    parts = [weights.reset, weights.update, weights.state]
    if all(issparse(part.W) for part in parts):
        return SparseWeights(
            nodes=weights.nodes,
            dtype=kind,
            gates=_sparse_block(parts[:2], kind),
            candidate=_sparse_block(parts[2:], kind),
        )
    reset, update, candidate = (_stacked(part, kind) for part in parts)
    return DenseWeights(
        nodes=weights.nodes,
        inputs=weights.inputs,
        dtype=kind,
        gates=np.concatenate([reset, update]),
        candidate=candidate,
        threads=cores(),
    )


def run(
    prepared: DenseWeights | SparseWeights,
    u: Array,
    state: Array,
    out: Array | None = None,
    loop: LoopTerms | None = None,
) -> Array:
    """Drive the network with `u` from `state`; row t of the result is the state after input t.

    `u` is (batch, time, inputs), `state` (batch, nodes), updated in place to the final state; the result is
    (batch, time, nodes), in `out` if given. All are C-contiguous and of the prepared dtype. `loop` acts on every new
    state. For the same batch size the result does not depend on how the time steps are divided among calls, bit for
    bit.

    tanh and σ are exact to rounding in float64; in float32 tanh is a rational function within 3.1e-7, and
    σ(x) = (1 + tanh(x / 2)) / 2.
    """
    if out is None:
        out = np.empty((*u.shape[:2], prepared.nodes), prepared.dtype)
    prepared.drive(u, state, out, activation_code("tanh", prepared.dtype), loop)
    state[...] = out[:, -1]
    return out


def _part(loop: LoopTerms | None, place: Any) -> LoopTerms | None:
    """The terms of some sequences or steps."""
    return None if loop is None else loop._replace(additive=loop.additive[place])


def _stacked(part: EsnWeights, dtype: np.dtype[Any]) -> Array:
    """Dense [W | W_in | bias | 0], rows and columns padded to whole vectors."""
    W = part.recurrent()
    W = W.toarray() if isinstance(W, csr_array) else W
    rows = np.concatenate([W, part.W_in, part.bias[:, None]], axis=1).astype(dtype)
    count, columns = rows.shape
    return np.pad(rows, ((0, padded(count) - count), (0, padded(columns) - columns)))


def _sparse_block(parts: list[EsnWeights], dtype: np.dtype[Any]) -> tuple[Array, Array, Array, Array, Array]:
    W = csr_array(vstack([part.recurrent() for part in parts], format="csr"))
    return (
        *padded_csr(W.astype(dtype)),
        np.ascontiguousarray(np.concatenate([part.W_in for part in parts]).T, dtype),
        np.concatenate([part.bias for part in parts]).astype(dtype),
    )


def _advance(fixed: tuple[Array, ...], u: Array, out: Array, code: int, loop: LoopTerms | None, *part: int) -> None:
    """Steps of one sequence from a first to a last one, on so many threads."""
    begin, end, threads = part
    _dense_parallel(*fixed, u[begin:end], out[begin:end], code, _part(loop, slice(begin, end)), threads)


@jit(ORDERED)
def _sigmoid(code, x):
    half = x.dtype.type(0.5)
    for i in range(x.shape[0]):
        x[i] *= half
    activate(code, x)
    for i in range(x.shape[0]):
        x[i] = half + half * x[i]


@jit(ORDERED)
def _update(z, before, h, loop, t, begin, end):
    """x = z ⊙ before + (1 - z) ⊙ h for the nodes from `begin` to `end`, in place of h."""
    one = h.dtype.type(1)
    for i in range(h.shape[0]):
        h[i] = z[i] * before[i] + (one - z[i]) * h[i]
    # Without terms the kernels are compiled for None and this is not in them.
    if loop is not None:
        impair(
            h, before, loop.saturation, loop.keep[begin:end], loop.gain[begin:end], loop.additive[t, begin:end],
            loop.lsb, loop.limit,
        )  # fmt: skip


@jit(ORDERED)
def _gate_block(gates, now, gated, products, nodes, code, begin, end):
    """Both gates of the nodes from `begin` to `end`; leaves z in the second half of `products`."""
    rows = products.shape[0] // 2
    stop = min(end, nodes)
    dense_rows(gates, now, begin, end, products)
    dense_rows(gates, now, rows + begin, rows + end, products)
    r = products[begin:stop]
    _sigmoid(code, r)
    gated[begin:stop] = r * now[begin:stop]
    _sigmoid(code, products[rows + begin : rows + stop])


@jit(ORDERED)
def _state_block(candidate, now, gated, products, out, code, loop, t, begin, end):
    """The new states of the nodes from `begin` to `end`; the first half of `products` is free by now."""
    rows = products.shape[0] // 2
    stop = min(end, out.shape[1])
    dense_rows(candidate, gated, begin, end, products)
    x = products[begin:stop]
    activate(code, x)
    _update(products[rows + begin : rows + stop], now[begin:stop], x, loop, t, begin, stop)
    now[begin:stop] = x
    out[t, begin:stop] = x


@jit(ORDERED)
def _set_inputs(now, gated, nodes, u):
    for k in range(u.shape[0]):
        now[nodes + k] = u[k]
        gated[nodes + k] = u[k]


@jit(ORDERED)
def _dense_serial(gates, candidate, now, gated, products, u, out, code, loop):
    rows, nodes = candidate.shape[0], out.shape[1]
    for t in range(u.shape[0]):
        _set_inputs(now, gated, nodes, u[t])
        _gate_block(gates, now, gated, products, nodes, code, 0, rows)
        _state_block(candidate, now, gated, products, out, code, loop, t, 0, rows)


@jit(ORDERED, parallel=True)
def _dense_parallel(gates, candidate, now, gated, products, u, out, code, loop, parts):
    units, nodes = candidate.shape[0] // LANES, out.shape[1]
    for t in range(u.shape[0]):
        _set_inputs(now, gated, nodes, u[t])
        for part in numba.prange(parts):
            begin = units * part // parts * LANES
            end = units * (part + 1) // parts * LANES
            _gate_block(gates, now, gated, products, nodes, code, begin, end)
        for part in numba.prange(parts):
            begin = units * part // parts * LANES
            end = units * (part + 1) // parts * LANES
            _state_block(candidate, now, gated, products, out, code, loop, t, begin, end)


@jit(ORDERED)
def _tiles(vectors, panels, products, first, last):
    """products = vectors @ panels, for the sequences first..last; `first` is a multiple of `ROWS`."""
    width = panels.shape[2]
    for p in range(panels.shape[0]):
        for b in range(first, last, ROWS):
            multiply_tile(vectors[b : b + ROWS], panels[p], products[b : b + ROWS, p * width : (p + 1) * width])


@jit(ORDERED)
def _dense_batch(gates, candidate, now, gated, products, u, out, code, loop, first, last):
    """All steps of the sequences first..last of a batch on one thread; the layout is that of `dense_batch`."""
    nodes, rows = out.shape[2], products.shape[1] // 2
    for t in range(u.shape[1]):
        for b in range(first, last):
            _set_inputs(now[b], gated[b], nodes, u[b, t])
        _tiles(now, gates, products, first, last)
        for b in range(first, last):
            r = products[b, :nodes]
            _sigmoid(code, r)
            for i in range(nodes):
                gated[b, i] = r[i] * now[b, i]
            _sigmoid(code, products[b, rows : rows + nodes])
        # Over the reset gate, which is no more needed.
        _tiles(gated, candidate, products, first, last)
        for b in range(first, last):
            x, before = products[b, :nodes], now[b, :nodes]
            activate(code, x)
            _update(products[b, rows : rows + nodes], before, x, None, t, 0, nodes)
            impair_nodes(x, before, loop, b, t, 0)
            before[:] = x
            out[b, t] = x


@jit(ORDERED)
def _sparse_product(weights, u, vector, out):
    starts, columns, values, input_rows, bias = weights
    sparse_rows(starts, columns, values, vector, 0, out.shape[0], out)
    add_input(input_rows, bias, u, 0, out)


@jit(ORDERED)
def _sparse_serial(gate_weights, candidate_weights, gates, gated, u, state, out, code, loop):
    nodes = out.shape[1]
    for t in range(u.shape[0]):
        before = out[t - 1] if t else state
        _sparse_product(gate_weights, u[t], before, gates)
        _sigmoid(code, gates)
        gated[:] = gates[:nodes] * before
        x = out[t]
        _sparse_product(candidate_weights, u[t], gated, x)
        activate(code, x)
        _update(gates[nodes:], before, x, loop, t, 0, nodes)
