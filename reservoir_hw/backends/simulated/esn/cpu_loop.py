"""The time loop of the simulated echo state network on the CPU.

s_t = (1-a) ⊙ s_{t-1} + a ⊙ f(W s_{t-1} + W_in u_t + b) (Jaeger et al. 2007, eq. 1).

Every choice made here (kernel, threads, order of the sums) depends on the sizes of the network and of the
batch, never on the number of time steps: a run in one piece, in chunks or step by step gives the same bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import issparse

from reservoir_hw.backends.simulated.engines import Activation
from reservoir_hw.backends.simulated.kernels import compiled
from reservoir_hw.backends.simulated.kernels.panels import dense_batch, dense_parallel, dense_serial, panels_of
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.threads import AdaptiveThreads, cores, share_out, threads_here
from reservoir_hw.networks.random_matrices import Matrix
from reservoir_hw.networks.weights import EsnWeights

Array = NDArray[Any]
# keep, gain, whether they matter, and the code of the activation.
_Equation: TypeAlias = tuple[Array, Array, bool, int]

# From these batch sizes a product with the whole batch beats the sequences one after another.
MATRIX_BATCH = 8
_DENSE_BATCH = 4
# Work per step, in float32 weights, under which a second thread costs more than it brings (about 5 µs).
THREADED_DENSE = 200_000
_THREADED_SPARSE = 20_000
# Products of one run from which on it is worth waking a second thread (about 0.2 ms of work).
THREADED_BATCH = 8_000_000
# Elements of the input and state scratch of one chunk of a batched run.
_CHUNK = 1 << 21


@dataclass(frozen=True, eq=False)
class PreparedWeights:
    """Weights in one precision, laid out for the kernels; made by `prepare`."""

    nodes: int
    dtype: np.dtype[Any]
    storage: np.dtype[Any]
    W: Matrix
    W_in: Array
    bias: Array
    keep: Array
    gain: Array
    leaky: bool
    threads: int
    adaptive: defaultdict[int, AdaptiveThreads] = field(
        default_factory=lambda: defaultdict(AdaptiveThreads), repr=False
    )
    """What is known about the speed of steps, by how many sequences there are."""

    @cached_property
    def panels(self) -> Array:
        """Dense [W | W_in | b] transposed and cut into panels: one product per step."""
        product = np.concatenate([np.asarray(self.W).T, self.W_in.T, self.bias[None]])
        return panels_of(product.astype(self.storage, copy=False), self.dtype)

    @cached_property
    def padded_leak(self) -> tuple[Array, Array]:
        """`keep` and `gain` up to the ends of whole vectors, with zeros."""
        missing = padded(self.nodes) - self.nodes
        return np.pad(self.keep, (0, missing)), np.pad(self.gain, (0, missing))

    @cached_property
    def csr(self) -> tuple[Array, Array, Array]:
        """The recurrent matrix as `padded_csr` has it."""
        starts, columns, values = padded_csr(self.W)
        values = values.astype(self.storage)
        # float16 as the bits that the kernels widen.
        return starts, columns, values.view(np.uint16) if self.storage == np.float16 else values

    @cached_property
    def input_rows(self) -> Array:
        """W_in transposed, (inputs × nodes)."""
        return np.ascontiguousarray(self.W_in.T)

    @property
    def sparse(self) -> bool:
        """Whether the recurrent matrix is kept as CSR."""
        return issparse(self.W)

    def step_is_threaded(self, batch: int) -> bool:
        """Whether it pays to divide one step of this many sequences among threads."""
        work, least = (self.W.nnz, _THREADED_SPARSE) if self.sparse else (self.W.size, THREADED_DENSE)
        return self.threads > 1 and work * batch >= least


def prepare(
    weights: EsnWeights,
    dtype: DTypeLike = np.float32,
    *,
    storage: DTypeLike | None = None,
) -> PreparedWeights:
    """Lay the weights out for `run`, in float32 or float64; done once per network.

    With `storage` float16 (and dtype float32) the recurrent weights, and for a dense network all weights, are
    read as float16, half the memory traffic, and must be representable in it (`EsnWeights.rounded`).
    """
    kind = np.dtype(dtype)
    stored = kind if storage is None else np.dtype(storage)
    if stored != kind and (kind, stored) != (np.float32, np.float16):
        raise ConfigurationError(f"weights of a {kind} network can be stored as {kind} or float16, not as {stored}")
    return PreparedWeights(
        nodes=weights.nodes,
        dtype=kind,
        storage=stored,
        W=weights.recurrent().astype(kind),
        W_in=weights.W_in.astype(kind),
        bias=weights.bias.astype(kind),
        keep=(1.0 - weights.leak).astype(kind),
        gain=weights.leak.astype(kind),
        leaky=bool((weights.leak != 1.0).any()),
        # Never more: waiting threads that outnumber the cores slow each step a hundredfold.
        threads=cores(),
    )


def run(
    prepared: PreparedWeights,
    u: Array,
    state: Array,
    out: Array | None = None,
    loop: LoopTerms | None = None,
    *,
    activation: Activation = "tanh",
) -> Array:
    """Drive the network with `u` from `state`; row t of the result is the state after input t.

    `u` is (batch, time, inputs) and `state` (batch, nodes), both C-contiguous and of the prepared dtype;
    `state` is updated in place to the final state. The result is (batch, time, nodes); for batches of a
    sparse network it is a permuted view of an array in (time, nodes, batch) order. `out`, of the result's
    shape and dtype, is filled and returned if given: fresh memory costs as much as a step of a large sparse
    network. `loop` acts on every new state. For the same batch size the result does not depend on how the
    time steps are divided among calls, bit for bit.

    tanh is exact to rounding in float64; in float32 it is a rational function within 3.1e-7 and never
    beyond ±1.
    """
    code = compiled.activation_code(activation, prepared.dtype)
    batch, steps, _ = u.shape
    equation = (prepared.keep, prepared.gain, prepared.leaky, code)
    if batch >= MATRIX_BATCH and prepared.sparse:
        return _run_sparse_batch(prepared, u, state, equation, loop, out)
    if out is None:
        out = np.empty((batch, steps, prepared.nodes), prepared.dtype)
    target = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    drive = _run_dense_batch if batch >= _DENSE_BATCH and not prepared.sparse else _run_each
    drive(prepared, u, state, equation, loop, target)
    state[...] = target[:, -1]
    if target is not out:
        out[...] = target
    return out


def _run_each(
    prepared: PreparedWeights, u: Array, state: Array, equation: _Equation, loop: LoopTerms | None, out: Array
) -> None:
    """All steps of a few sequences: side by side on threads, or of one, each step on several threads if it is large."""
    batch, steps, _ = u.shape
    if prepared.sparse:
        serial, parallel, products = compiled.sparse_serial, compiled.sparse_parallel, prepared.W.nnz
        common = (*prepared.csr, prepared.input_rows, prepared.bias, state, u, out, *equation, loop)
    else:
        serial, parallel, products = dense_serial, dense_parallel, prepared.panels.size
        count, columns, width = prepared.panels.shape
        # For each sequence two state vectors, read and written in turn, followed by the input and the 1 of the bias.
        vectors = np.zeros((batch, 2, padded(columns)), prepared.dtype)
        vectors[:, 0, : prepared.nodes] = state
        sums = np.empty((batch, count * width), prepared.dtype)
        common = (prepared.panels, vectors, sums, u, out, *prepared.padded_leak, *equation[2:], loop)
    threads = threads_here(prepared.threads)
    if batch == 1 and threads > 1 and prepared.step_is_threaded(1):
        prepared.adaptive[1].drive(partial(parallel, *common, 0), steps, threads)
    else:
        at_once = threads if batch * steps * products >= THREADED_BATCH else 1
        share_out(lambda b: serial(*common, b, 0, steps), range(batch), at_once)


def _run_dense_batch(
    prepared: PreparedWeights, u: Array, state: Array, equation: _Equation, loop: LoopTerms | None, out: Array
) -> None:
    batch, steps, inputs = u.shape
    panels, nodes = prepared.panels, prepared.nodes
    count, columns, width = panels.shape
    rows = -(-batch // compiled.ROWS) * compiled.ROWS
    # Rows of state, input and the 1 of the bias; the rows beyond the batch are multiplied in vain.
    vectors = np.zeros((rows, padded(columns)), prepared.dtype)
    vectors[:batch, :nodes] = state
    vectors[:, nodes + inputs] = 1
    products = np.empty((rows, count * width), prepared.dtype)
    common = (panels, vectors, products, u, out, *equation, loop)
    products_of_all = panels.size * rows * steps
    share_out_sequences(partial(dense_batch, *common), batch, products_of_all, prepared.threads)


def share_out_sequences(drive: Callable[[int, int], None], batch: int, products: int, threads: int) -> None:
    """Call `drive(first, last)` for parts of a batch, in whole tiles; on threads if the products are enough in all."""
    threads = threads_here(threads) if products >= THREADED_BATCH else 1
    tiles = -(-batch // compiled.ROWS)
    # More parts than threads: one that was kept waiting for its core leaves the rest to the others.
    parts = min(tiles, 2 * threads) if threads > 1 else 1
    cuts = [tiles * part // parts * compiled.ROWS for part in range(parts)]
    share_out(lambda part: drive(*part), list(pairwise([*cuts, batch])), threads)


def _run_sparse_batch(
    prepared: PreparedWeights, u: Array, state: Array, equation: _Equation, loop: LoopTerms | None, out: Array | None
) -> Array:
    batch, steps, inputs = u.shape
    nodes = prepared.nodes
    result = np.empty((steps, nodes, batch), prepared.dtype).transpose(2, 0, 1) if out is None else out
    chunk = max(1, _CHUNK // (batch * (nodes + inputs)))
    previous = np.ascontiguousarray(state.T)
    threads = prepared.threads if prepared.step_is_threaded(batch) else 1
    fixed = (*prepared.csr, prepared.W_in, prepared.bias)
    for first in range(0, steps, chunk):
        part = slice(first, first + chunk)
        rows = result[:, part].transpose(1, 2, 0)
        target = rows if rows.flags.c_contiguous else np.empty(rows.shape, rows.dtype)
        drive = _time_first(u[:, part])
        here = None if loop is None else loop._replace(additive=_time_first(loop.additive[:, part]))
        advance = partial(compiled.sparse_batch, *fixed, previous, drive, target, *equation, here)
        prepared.adaptive[batch].drive(advance, len(drive), threads)
        if target is not rows:
            rows[...] = target
        previous = target[-1]
    state[...] = previous.T
    return result


def padded_csr(W: Any) -> tuple[Array, Array, Array]:
    """Row starts, columns and values of a `csr_array`, each row filled up with zeros to whole groups.

    Column numbers are unsigned, since numba checks signed indices for wrapping, and as short as they can be.
    """
    counts = np.diff(W.indptr)
    starts = np.concatenate([[0], np.cumsum(-(-counts // compiled.GROUP) * compiled.GROUP)])
    columns = np.zeros(starts[-1], np.uint16 if W.shape[1] <= 1 << 16 else np.uint32)
    values = np.zeros(starts[-1], W.dtype)
    places = np.arange(W.nnz) + np.repeat(starts[:-1] - W.indptr[:-1], counts)
    columns[places] = W.indices
    values[places] = W.data
    return starts.astype(np.uint32), columns, values


def _time_first(array: Array) -> Array:
    """(batch, time, width) as (time, width, batch)."""
    return np.ascontiguousarray(array.transpose(1, 2, 0))


def padded(count: int) -> int:
    """The next multiple of a vector register's numbers."""
    return -(-count // compiled.LANES) * compiled.LANES
