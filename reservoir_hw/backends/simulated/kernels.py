"""The time loop of the simulated echo state network on the CPU, compiled by numba.

s_t = (1-a) ⊙ s_{t-1} + a ⊙ f(W s_{t-1} + W_in u_t + b) (Jaeger et al. 2007, eq. 1).

Every choice made here (kernel, threads, order of the sums) depends on the sizes of the network and of the
batch, never on the number of time steps: a run in one piece, in chunks or step by step gives the same bits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from reservoir_hw.backends.simulated.weights import EsnWeights
from reservoir_hw.errors import ConfigurationError, MissingExtra, ShapeError

try:
    import numba
except ImportError as error:  # pragma: no cover
    raise MissingExtra("the simulated reservoir's CPU kernels need numba: pip install 'reservoir-hw[sim]'") from error

Activation = Literal["tanh", "relu", "identity"]
Array = NDArray[Any]
_Kernel: TypeAlias = Callable[..., Any]

_IDENTITY, _RELU, _TANH, _RATIONAL_TANH = range(4)

# Sums may be reordered, which lets them vectorise; NaN and infinity must survive, so no "fast".
_REORDERED = frozenset({"reassoc", "contract", "nsz"})
# The activation keeps its order: its error bound was measured in that order.
_ORDERED = frozenset({"contract"})

# Rows per scratch block of the sparse kernels: the block's states stay in the first-level cache.
_BLOCK = 1024
# A vector register of AVX-512 in float32, and the unit in which rows are shared out among threads.
_LANES = 16
# From this batch size one matrix product beats the sequences one after another.
_MATRIX_BATCH = 8
# Work per step, in float32 weights, under which a second thread costs more than it brings (about 5 µs).
_THREADED_DENSE = 200_000
_THREADED_SPARSE = 20_000
# Elements of the input and state scratch of one chunk of a batched run.
_CHUNK = 1 << 21

# Unsigned constants: in numba an unsigned and a signed integer meet as a float.
_ONE, _TWO, _THREE, _FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)

# numba's simplest threading layer aborts the process when two threads enter it at once.
_parallel_region = threading.Lock()


def _jit(fastmath: frozenset[str], *, parallel: bool = False) -> Callable[[_Kernel], _Kernel]:
    options: dict[str, Any] = {
        "nogil": True,
        "fastmath": set(fastmath),
        "parallel": parallel,
        "error_model": "numpy",
    }

    def decorate(function: _Kernel) -> _Kernel:
        try:
            compiled: Any = numba.njit(cache=True, **options)(function)
        except RuntimeError:
            # Neither the package's folder nor a user's cache folder can be written to.
            compiled = numba.njit(**options)(function)
        return compiled

    return decorate


@dataclass(frozen=True, eq=False)
class PreparedWeights:
    """Weights in one precision, laid out for the kernels; made by `prepare`."""

    nodes: int
    inputs: int
    dtype: np.dtype[Any]
    W: Array | csr_array
    W_in: Array
    bias: Array
    keep: Array
    gain: Array
    leaky: bool
    threads: int
    paces: dict[int, _Pace] = field(default_factory=dict, repr=False)

    @cached_property
    def stacked(self) -> Array:
        """Dense [W | W_in | b | 0], rows and columns padded to whole vectors: one product per step."""
        columns = self.nodes + self.inputs + 1
        stacked = np.zeros((_padded(self.nodes), _padded(columns)), self.dtype)
        rows = stacked[: self.nodes]
        rows[:, : self.nodes] = self.W
        rows[:, self.nodes : columns - 1] = self.W_in
        rows[:, columns - 1] = self.bias
        return stacked

    @cached_property
    def csr(self) -> tuple[Array, Array, Array]:
        """Row starts, columns and values. Unsigned, since numba checks signed indices for wrapping."""
        W = self.W
        assert isinstance(W, csr_array)
        return W.indptr.astype(np.uint32), W.indices.astype(np.uint32), W.data

    @cached_property
    def input_rows(self) -> Array:
        """W_in transposed, (inputs × nodes)."""
        return np.ascontiguousarray(self.W_in.T)

    @property
    def sparse(self) -> bool:
        """Whether the recurrent matrix is kept as CSR."""
        return isinstance(self.W, csr_array)

    def step_is_threaded(self, batch: int) -> bool:
        """Whether one step of so many sequences is worth sharing out among threads."""
        if isinstance(self.W, csr_array):
            return self.threads > 1 and self.W.nnz * batch >= _THREADED_SPARSE
        return self.threads > 1 and self.nodes * self.nodes * batch >= _THREADED_DENSE


def prepare(weights: EsnWeights, dtype: DTypeLike = np.float32, *, threads: int | None = None) -> PreparedWeights:
    """Lay the weights out for `run`, in float32 or float64; done once per network.

    `threads` bounds the threads of one run: by default the cores this process may use, and never more,
    because waiting threads that outnumber the cores slow each step a hundredfold.
    """
    kind = np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        raise ConfigurationError(f"dtype must be float32 or float64, it is {kind}")
    if threads is not None and threads < 1:
        raise ConfigurationError(f"threads must be at least 1, it is {threads}")
    available = _available_threads()
    W = weights.recurrent()
    return PreparedWeights(
        nodes=weights.nodes,
        inputs=weights.inputs,
        dtype=kind,
        W=W.astype(kind),
        W_in=weights.W_in.astype(kind),
        bias=weights.bias.astype(kind),
        keep=(1.0 - weights.leak).astype(kind),
        gain=weights.leak.astype(kind),
        leaky=bool((weights.leak != 1.0).any()),
        threads=available if threads is None else min(threads, available),
    )


def run(
    prepared: PreparedWeights,
    u: Array,
    state: Array,
    activation: Activation = "tanh",
    out: Array | None = None,
) -> Array:
    """Drive the network with `u` from `state`; row t of the result is the state after input t.

    `u` is (batch, time, inputs) and `state` (batch, nodes), both C-contiguous and of the prepared dtype;
    `state` is updated in place to the final state. The result is (batch, time, nodes); for batches of a
    sparse network it is a permuted view of an array in (time, nodes, batch) order. `out`, of the result's
    shape and dtype, is filled and returned if given: fresh memory costs as much as a step of a large sparse
    network. For the same batch size the result does not depend on how the time steps are divided
    among calls, bit for bit.

    tanh is exact to rounding in float64; in float32 it is a rational function within 3.1e-7 and never
    beyond ±1. Raises `ShapeError` for shapes, dtypes or memory orders other than these.
    """
    _check_call(prepared, u, state, out)
    code = _activation_code(activation, prepared.dtype)
    batch, steps, _ = u.shape
    if batch >= _MATRIX_BATCH:
        driver = _run_sparse_batch if prepared.sparse else _run_dense_batch
        if steps and batch:
            return driver(prepared, u, state, code, out)
    if out is None:
        out = np.empty((batch, steps, prepared.nodes), prepared.dtype)
    if not steps:
        return out
    for sequence in range(batch):
        rows = out[sequence]
        target = rows if rows.flags.c_contiguous else np.empty(rows.shape, rows.dtype)
        _run_sequence(prepared, u[sequence], state[sequence], code, target)
        if target is not rows:
            rows[...] = target
        state[sequence] = target[-1]
    return out


def _run_sequence(prepared: PreparedWeights, u: Array, state: Array, code: int, out: Array) -> None:
    common = (prepared.keep, prepared.gain, prepared.leaky, code)
    if prepared.sparse:
        fixed = (*prepared.csr, prepared.input_rows, prepared.bias)

        def advance(begin: int, end: int, threads: int) -> None:
            previous = out[begin - 1] if begin else state
            _sparse_parallel(*fixed, u[begin:end], previous, out[begin:end], *common, threads)

        if not prepared.step_is_threaded(1):
            _sparse_serial(*fixed, u, state, out, *common)
            return
    else:
        # Two state vectors, read and written in turn, each followed by the input and the 1 of the bias.
        vectors = np.zeros((2, prepared.stacked.shape[1]), prepared.dtype)
        vectors[0, : prepared.nodes] = state
        vectors[:, prepared.nodes + prepared.inputs] = 1
        products = np.empty(prepared.stacked.shape[0], prepared.dtype)

        def advance(begin: int, end: int, threads: int) -> None:
            part = (u[begin:end], out[begin:end])
            _dense_parallel(prepared.stacked, vectors, begin & 1, products, *part, *common, threads)

        if not prepared.step_is_threaded(1):
            _dense_serial(prepared.stacked, vectors, products, u, out, *common)
            return
    _pace(prepared, 1).drive(advance, len(u), prepared.threads)


def _run_dense_batch(prepared: PreparedWeights, u: Array, state: Array, code: int, out: Array | None) -> Array:
    batch, steps, _ = u.shape
    nodes, columns = prepared.nodes, prepared.nodes + prepared.inputs + 1
    if out is None:
        out = np.empty((batch, steps, nodes), prepared.dtype)
    matrix = prepared.stacked[:nodes, :columns].T
    vectors = np.ones((batch, columns), prepared.dtype)
    vectors[:, :nodes] = state
    products = np.empty((batch, nodes), prepared.dtype)
    for step in range(steps):
        # The same shapes at every step: a product over several steps would round by their number.
        vectors[:, nodes:-1] = u[:, step]
        np.matmul(vectors, matrix, out=products)
        _activate_batch(products, vectors, out[:, step], prepared.keep, prepared.gain, prepared.leaky, code)
    state[...] = vectors[:, :nodes]
    return out


def _run_sparse_batch(prepared: PreparedWeights, u: Array, state: Array, code: int, out: Array | None) -> Array:
    batch, steps, inputs = u.shape
    nodes = prepared.nodes
    result = np.empty((steps, nodes, batch), prepared.dtype).transpose(2, 0, 1) if out is None else out
    chunk = max(1, _CHUNK // (batch * (nodes + inputs)))
    previous = np.ascontiguousarray(state.T)
    threads = prepared.threads if prepared.step_is_threaded(batch) else 1
    fixed = (*prepared.csr, prepared.W_in, prepared.bias)
    common = (prepared.keep, prepared.gain, prepared.leaky, code)
    for first in range(0, steps, chunk):
        rows = result[:, first : first + chunk].transpose(1, 2, 0)
        target = rows if rows.flags.c_contiguous else np.empty(rows.shape, rows.dtype)
        drive = np.ascontiguousarray(u[:, first : first + chunk].transpose(1, 2, 0))

        def advance(begin: int, end: int, threads: int, u=drive, start=previous, out=target) -> None:
            before = out[begin - 1] if begin else start
            _sparse_batch(*fixed, u[begin:end], before, out[begin:end], *common, threads)

        _pace(prepared, batch).drive(advance, len(drive), threads)
        if target is not rows:
            rows[...] = target
        previous = target[-1]
    state[...] = previous.T
    return result


class _Pace:
    """Decides, as it drives, whether a network's steps are shared out among threads or done by one.

    Threads that wait for one another at every step are the quicker way while each has a core. Where another
    process wants a core too, a step takes as long as the scheduler's time slice, a thousand times longer.
    Nothing tells beforehand, so the steps are timed: as soon as sharing them is the slower way, one thread
    goes on alone for a while. The kernel is the same and so are the bits.
    """

    _SLICE = 32
    _PROBES = 4
    _ALONE_FOR = 30.0

    def __init__(self) -> None:
        self._probes = 0
        self._best = {True: np.inf, False: np.inf}
        self._resume = 0.0
        self._slice = 4

    def drive(self, advance: Callable[[int, int, int], None], steps: int, threads: int) -> None:
        """Call `advance(begin, end, threads)` until all steps are done."""
        done = 0
        while done < steps:
            now = time.perf_counter()
            shared = threads > 1 and self._probes >= self._PROBES and now >= self._resume
            end = steps if threads == 1 else min(steps, done + self._slice)
            with _numba_threads(threads if shared else 1):
                begin = time.perf_counter()
                advance(done, end, threads if shared else 1)
                self._learn(shared, time.perf_counter() - begin, end - done)
            done = end

    def _learn(self, shared: bool, seconds: float, steps: int) -> None:
        self._probes += 1
        if self._probes == 1:
            return  # this one compiled
        # The quickest seen: what else the machine does only ever adds.
        pace = seconds / steps
        self._best[shared] = min(self._best[shared], pace)
        if shared and pace > 1.5 * min(self._best[False], 2 * self._best[True]):
            self._resume = time.perf_counter() + self._ALONE_FOR * seconds
            self._slice = 4
        elif self._probes >= self._PROBES:
            self._slice = min(2 * self._slice, self._SLICE)


def _pace(prepared: PreparedWeights, batch: int) -> _Pace:
    return prepared.paces.setdefault(batch, _Pace())


@contextmanager
def _numba_threads(threads: int) -> Iterator[None]:
    with _parallel_region:
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            yield
        finally:
            numba.set_num_threads(before)


def _available_threads() -> int:
    # The most that set_num_threads accepts: the cores of this process, or fewer where its user said so.
    return int(numba.config.NUMBA_NUM_THREADS)  # pyright: ignore


def _activation_code(activation: str, dtype: np.dtype[Any]) -> int:
    codes = {
        "identity": _IDENTITY,
        "relu": _RELU,
        "tanh": _RATIONAL_TANH if dtype == np.float32 else _TANH,
    }
    if activation not in codes:
        raise ConfigurationError(f"unknown activation {activation!r}: choose one of tanh, relu, identity")
    return codes[activation]


def _check_call(prepared: PreparedWeights, u: Array, state: Array, out: Array | None) -> None:
    if u.ndim != 3 or u.shape[2] != prepared.inputs:
        raise ShapeError(f"u must be (batch, time, inputs={prepared.inputs}), its shape is {u.shape}")
    _check_array("u", u, u.shape, prepared.dtype, contiguous=True)
    _check_array("state", state, (u.shape[0], prepared.nodes), prepared.dtype, contiguous=True)
    if out is not None:
        _check_array("out", out, (*u.shape[:2], prepared.nodes), prepared.dtype, contiguous=False)


def _check_array(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any], *, contiguous: bool) -> None:
    if array.shape != shape:
        raise ShapeError(f"{name} must have the shape {shape}, it has {array.shape}")
    if array.dtype != dtype:
        raise ShapeError(f"{name} must be {dtype} like the prepared weights, it is {array.dtype}")
    if contiguous and not array.flags.c_contiguous:
        raise ShapeError(f"{name} must be C-contiguous: pass numpy.ascontiguousarray({name})")


def _padded(count: int) -> int:
    return -(-count // _LANES) * _LANES


@_jit(_ORDERED)
def _rational_tanh(x):
    # Eigen's float32 approximation: odd degree 13 over even degree 6, clamped where tanh rounds to 1.
    # Comparisons, not min and max, so that NaN stays NaN.
    limit = np.float32(7.90531110763549805)
    if x > limit:
        x = limit
    if x < -limit:
        x = -limit
    q = x * x
    p = np.float32(-2.76076847742355e-16)
    p = p * q + np.float32(2.00018790482477e-13)
    p = p * q + np.float32(-8.60467152213735e-11)
    p = p * q + np.float32(5.12229709037114e-08)
    p = p * q + np.float32(1.48572235717979e-05)
    p = p * q + np.float32(6.37261928875436e-04)
    p = p * q + np.float32(4.89352455891786e-03)
    d = np.float32(1.19825839466702e-06)
    d = d * q + np.float32(1.18534705686654e-04)
    d = d * q + np.float32(2.26843463243900e-03)
    d = d * q + np.float32(4.89352518554385e-03)
    return x * p / d


@_jit(_ORDERED)
def _apply(code, x):
    if code == _RATIONAL_TANH:
        for i in range(x.shape[0]):
            x[i] = _rational_tanh(x[i])
    elif code == _TANH:
        for i in range(x.shape[0]):
            x[i] = np.tanh(x[i])
    elif code == _RELU:
        for i in range(x.shape[0]):
            if x[i] < 0:
                x[i] = 0


@_jit(_ORDERED)
def _leak(x, previous, keep, gain):
    for i in range(x.shape[0]):
        x[i] = keep[i] * previous[i] + gain[i] * x[i]


@_jit(_REORDERED)
def _dense_rows(matrix, vector, begin, end, out):
    zero = vector.dtype.type(0)
    for i in range(begin, end, 4):
        r0, r1, r2, r3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        a0 = a1 = a2 = a3 = zero
        for j in range(vector.shape[0]):
            v = vector[j]
            a0 += r0[j] * v
            a1 += r1[j] * v
            a2 += r2[j] * v
            a3 += r3[j] * v
        out[i], out[i + 1], out[i + 2], out[i + 3] = a0, a1, a2, a3


@_jit(_ORDERED)
def _dense_block(matrix, now, following, products, out, keep, gain, leaky, code, begin, end):
    _dense_rows(matrix, now, begin, end, products)
    stop = min(end, out.shape[0])
    x = products[begin:stop]
    _apply(code, x)
    if leaky:
        _leak(x, now[begin:stop], keep[begin:stop], gain[begin:stop])
    out[begin:stop] = x
    following[begin:stop] = x


@_jit(_ORDERED)
def _set_input(vector, nodes, u):
    for k in range(u.shape[0]):
        vector[nodes + k] = u[k]


@_jit(_ORDERED)
def _dense_serial(matrix, vectors, products, u, out, keep, gain, leaky, code):
    rows, nodes = products.shape[0], out.shape[1]
    for t in range(u.shape[0]):
        now, following = vectors[t & 1], vectors[1 - (t & 1)]
        _set_input(now, nodes, u[t])
        _dense_block(matrix, now, following, products, out[t], keep, gain, leaky, code, 0, rows)


@_jit(_ORDERED, parallel=True)
def _dense_parallel(matrix, vectors, first, products, u, out, keep, gain, leaky, code, parts):
    units, nodes = products.shape[0] // _LANES, out.shape[1]
    for t in range(u.shape[0]):
        turn = (first + t) & 1
        now, following = vectors[turn], vectors[1 - turn]
        _set_input(now, nodes, u[t])
        for part in numba.prange(parts):
            begin = units * part // parts * _LANES
            end = units * (part + 1) // parts * _LANES
            _dense_block(matrix, now, following, products, out[t], keep, gain, leaky, code, begin, end)


@_jit(_ORDERED)
def _activate_batch(products, vectors, out, keep, gain, leaky, code):
    nodes = products.shape[1]
    for b in range(products.shape[0]):
        x = products[b]
        _apply(code, x)
        if leaky:
            _leak(x, vectors[b, :nodes], keep, gain)
        vectors[b, :nodes] = x
        out[b] = x


@_jit(_REORDERED)
def _sparse_rows(starts, columns, values, vector, begin, end, out):
    zero = vector.dtype.type(0)
    for i in range(begin, end):
        first, last = np.uint64(starts[i]), np.uint64(starts[i + 1])
        whole = first + (last - first) // _FOUR * _FOUR
        a0 = a1 = a2 = a3 = zero
        for k in range(first, whole, _FOUR):
            a0 += values[k] * vector[columns[k]]
            a1 += values[k + _ONE] * vector[columns[k + _ONE]]
            a2 += values[k + _TWO] * vector[columns[k + _TWO]]
            a3 += values[k + _THREE] * vector[columns[k + _THREE]]
        for k in range(whole, last, _ONE):
            a0 += values[k] * vector[columns[k]]
        out[i - begin] = (a0 + a1) + (a2 + a3)


@_jit(_ORDERED)
def _add_input(input_rows, bias, u, begin, out):
    count = out.shape[0]
    inputs = u.shape[0]
    whole = inputs // 4 * 4
    for i in range(count):
        out[i] += bias[begin + i]
    for k in range(0, whole, 4):
        u0, u1, u2, u3 = u[k], u[k + 1], u[k + 2], u[k + 3]
        w0, w1 = input_rows[k, begin : begin + count], input_rows[k + 1, begin : begin + count]
        w2, w3 = input_rows[k + 2, begin : begin + count], input_rows[k + 3, begin : begin + count]
        for i in range(count):
            out[i] += (w0[i] * u0 + w1[i] * u1) + (w2[i] * u2 + w3[i] * u3)
    for k in range(whole, inputs):
        u0, w0 = u[k], input_rows[k, begin : begin + count]
        for i in range(count):
            out[i] += w0[i] * u0


@_jit(_ORDERED)
def _sparse_block(starts, columns, values, input_rows, bias, u, previous, out, keep, gain, leaky, code, begin, end):
    for first in range(begin, end, _BLOCK):
        last = min(first + _BLOCK, end)
        x = out[first:last]
        _sparse_rows(starts, columns, values, previous, first, last, x)
        _add_input(input_rows, bias, u, first, x)
        _apply(code, x)
        if leaky:
            _leak(x, previous[first:last], keep[first:last], gain[first:last])


@_jit(_ORDERED)
def _sparse_serial(starts, columns, values, input_rows, bias, u, state, out, keep, gain, leaky, code):
    for t in range(u.shape[0]):
        previous = out[t - 1] if t else state
        _sparse_block(
            starts, columns, values, input_rows, bias, u[t], previous, out[t], keep, gain, leaky, code,
            0, out.shape[1],
        )  # fmt: skip


@_jit(_ORDERED, parallel=True)
def _sparse_parallel(starts, columns, values, input_rows, bias, u, state, out, keep, gain, leaky, code, parts):
    nodes = out.shape[1]
    units = (nodes + _LANES - 1) // _LANES
    for t in range(u.shape[0]):
        previous = out[t - 1] if t else state
        for part in numba.prange(parts):
            begin = units * part // parts * _LANES
            end = min(units * (part + 1) // parts * _LANES, nodes)
            _sparse_block(
                starts, columns, values, input_rows, bias, u[t], previous, out[t], keep, gain, leaky, code,
                begin, end,
            )  # fmt: skip


@_jit(_ORDERED)
def _sparse_batch_row(starts, columns, values, weights, offset, u, previous, x, i):
    batch = x.shape[0]
    for b in range(batch):
        x[b] = offset
    for k in range(u.shape[0]):
        w0, s0 = weights[k], u[k]
        for b in range(batch):
            x[b] += w0 * s0[b]
    first, last = np.uint64(starts[i]), np.uint64(starts[i + 1])
    whole = first + (last - first) // _FOUR * _FOUR
    for k in range(first, whole, _FOUR):
        w0, w1, w2, w3 = values[k], values[k + _ONE], values[k + _TWO], values[k + _THREE]
        s0, s1 = previous[columns[k]], previous[columns[k + _ONE]]
        s2, s3 = previous[columns[k + _TWO]], previous[columns[k + _THREE]]
        for b in range(batch):
            x[b] += (w0 * s0[b] + w1 * s1[b]) + (w2 * s2[b] + w3 * s3[b])
    for k in range(whole, last, _ONE):
        w0, s0 = values[k], previous[columns[k]]
        for b in range(batch):
            x[b] += w0 * s0[b]


@_jit(_ORDERED)
def _sparse_batch_block(starts, columns, values, W_in, bias, u, previous, out, keep, gain, leaky, code, begin, end):
    for i in range(begin, end):
        x = out[i]
        _sparse_batch_row(starts, columns, values, W_in[i], bias[i], u, previous, x, i)
        _apply(code, x)
        if leaky:
            k, g, s = keep[i], gain[i], previous[i]
            for b in range(x.shape[0]):
                x[b] = k * s[b] + g * x[b]


@_jit(_ORDERED, parallel=True)
def _sparse_batch(starts, columns, values, W_in, bias, u, state, out, keep, gain, leaky, code, parts):
    nodes = out.shape[1]
    for t in range(u.shape[0]):
        previous = out[t - 1] if t else state
        for part in numba.prange(parts):
            _sparse_batch_block(
                starts, columns, values, W_in, bias, u[t], previous, out[t], keep, gain, leaky, code,
                nodes * part // parts, nodes * (part + 1) // parts,
            )  # fmt: skip
