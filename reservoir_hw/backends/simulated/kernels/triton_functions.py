"""Device functions that the Triton kernels of every kind share: activations, `LoopTerms`, and products."""

from __future__ import annotations

from reservoir_hw.core.errors import MissingExtra

try:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtra("the engine triton needs triton: pip install 'reservoir-hw[gpu]'") from error


@triton.jit
def rational_tanh(x):
    """tanh in float32 within 3.1e-7, never beyond ±1: the approximation of the CPU kernels."""
    # Comparisons, not min and max, so that NaN stays NaN.
    x = tl.where(x > 7.90531110763549805, 7.90531110763549805, x)
    x = tl.where(x < -7.90531110763549805, -7.90531110763549805, x)
    q = x * x
    p = q * -2.76076847742355e-16 + 2.00018790482477e-13
    p = p * q - 8.60467152213735e-11
    p = p * q + 5.12229709037114e-08
    p = p * q + 1.48572235717979e-05
    p = p * q + 6.37261928875436e-04
    p = p * q + 4.89352455891786e-03
    d = q * 1.19825839466702e-06 + 1.18534705686654e-04
    d = d * q + 2.26843463243900e-03
    d = d * q + 4.89352518554385e-03
    # A GPU divides within two units in the last place.
    y = x * p / d
    y = tl.where(y > 1.0, 1.0, y)
    return tl.where(y < -1.0, -1.0, y)


@triton.jit
def sigmoid(x):
    """The logistic function, as (1 + tanh(x / 2)) / 2."""
    return 0.5 + 0.5 * rational_tanh(0.5 * x)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation of that name."""
    if ACTIVATION == "tanh":
        x = rational_tanh(x)
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    return x


@triton.jit
def impaired(x, before, keep, gain, additive, limits):
    """What `LoopTerms` makes of freshly computed states; `limits` points to saturation, lsb and limit."""
    saturation, lsb, limit = tl.load(limits), tl.load(limits + 1), tl.load(limits + 2)
    bound = tl.where(saturation < float("inf"), saturation, 1.0)
    x = tl.where(saturation < float("inf"), bound * rational_tanh(x / bound), x)
    x = keep * before + gain * x + additive
    # Divided as on the CPU: a last place more or less can be a whole step.
    step = tl.where(lsb > 0.0, lsb, 1.0)
    rounded = tl.floor(tl.math.div_rn(x, tl.zeros_like(x) + step) + 0.5) * step
    rounded = tl.where(rounded < -limit, -limit, rounded)
    rounded = tl.where(rounded > limit - step, limit - step, rounded)
    return tl.where(lsb > 0.0, rounded, x)


@triton.jit
def add_dense(
    x, W, width, rows, row_inside, vectors, stride, sequences, valid,
    TILE: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x (TILE, ROWS) plus rows of a row-major W (..., width) times the vectors of some sequences, `stride` apart."""
    for first in range(0, width, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = columns < width
        places = sequences[:, None] * stride + columns[None, :]
        s = tl.load(vectors + places, mask=valid[:, None] & inside[None, :], other=0.0)
        places = rows[:, None] * width + columns[None, :]
        w = tl.load(W + places, mask=row_inside[:, None] & inside[None, :], other=0.0).to(tl.float32)
        if TILE == 1:
            x += tl.sum(w * s, axis=1)[None, :]
        else:
            x += tl.dot(s, tl.trans(w), input_precision=PRECISION)
    return x


@triton.jit
def add_sparse(x, starts, columns, values, rows, row_inside, vector, GROUP: tl.constexpr):
    """x (1, ROWS) plus some rows of a CSR matrix times one vector."""
    begin = tl.load(starts + rows, mask=row_inside, other=0)
    end = tl.load(starts + rows + 1, mask=row_inside, other=0)
    longest = tl.max(end - begin, axis=0)
    for first in range(0, longest, GROUP):
        places = begin[:, None] + first + tl.arange(0, GROUP)[None, :]
        inside = places < end[:, None]
        where = tl.load(columns + places, mask=inside, other=0)
        w = tl.load(values + places, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(vector + where, mask=inside, other=0.0)
        x += tl.sum(w * s, axis=1)[None, :]
    return x


@triton.jit
def weighted_sum(
    W, starts, columns, values, W_in, bias, u_now, u_stride, vectors, matrix, rows, inside, nodes, inputs, sequences,
    valid, TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPARSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(TILE, ROWS): bias, input and recurrent product of one matrix for some rows and sequences."""
    first = matrix * nodes
    x = tl.zeros((TILE, ROWS), tl.float32) + tl.load(bias + first + rows, mask=inside, other=0.0)[None, :]
    x = add_dense(
        x, W_in + first * inputs, inputs, rows, inside, u_now, u_stride, sequences, valid, TILE, 16, PRECISION
    )
    if SPARSE:
        vector = vectors + tl.sum(sequences, axis=0) * nodes
        x = add_sparse(x, starts + matrix * (nodes + 1), columns, values, rows, inside, vector, COLUMNS)
    else:
        x = add_dense(
            x, W + first * nodes, nodes, rows, inside, vectors, nodes, sequences, valid, TILE, COLUMNS, PRECISION
        )
    return x
