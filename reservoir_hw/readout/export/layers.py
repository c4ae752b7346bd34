"""Layers of networks as ONNX nodes; each takes and returns names of tensors (..., width).

Weights are numpy arrays as the model keeps them: of a linear layer (out, in), as in torch.
"""

from __future__ import annotations

import math

import numpy as np

from reservoir_hw.readout.export.graph import Graph
from reservoir_hw.readout.export.weights import check_finite

# Processors without integer dot products add two products of 8 bits in 16, which must not overflow: 2·255·63 < 2^15.
_LARGEST = 63


def linear(graph: Graph, x: str, name: str, weight: np.ndarray, bias: np.ndarray | None) -> str:
    """W x + b of x (..., in), W (out, in) and b (out,)."""
    if graph.precision == "int8":
        product = _quantised_product(graph, x, name, weight)
    else:
        matrix = graph.weight(f"{name}.weight", np.ascontiguousarray(weight.T, np.float32))
        product = graph.node("MatMul", x, matrix)
    if bias is None:
        return product
    return graph.node("Add", product, graph.weight(f"{name}.bias", np.asarray(bias, np.float32)))


def linear_in_double(graph: Graph, x: str, name: str, weight: np.ndarray, bias: np.ndarray) -> str:
    """W x + b of x (..., in) in any precision, computed in float64; float32."""
    wide = graph.node("Cast", x, to=_onnx_type("float64"))
    matrix = graph.weight(f"{name}.weight", np.ascontiguousarray(weight.T, np.float64))
    product = graph.node("MatMul", wide, matrix)
    shifted = graph.node("Add", product, graph.weight(f"{name}.bias", np.asarray(bias, np.float64)))
    return graph.node("Cast", shifted, to=_onnx_type("float32"))


def tied_projection(graph: Graph, x: str, name: str, weight: np.ndarray) -> str:
    """W x with the rows of an embedding, W (out, in): stored as the embedding stores it, once."""
    if graph.precision == "int8":
        return _quantised_product(graph, x, name, weight)
    matrix = graph.weight(f"{name}.weight", np.asarray(weight, np.float32))
    return graph.node("MatMul", x, graph.node("Transpose", matrix, perm=[1, 0]))


def embedding(graph: Graph, tokens: str, name: str, vectors: np.ndarray) -> str:
    """Vectors (..., width) of tokens (...), from (vocabulary, width)."""
    return graph.node("Gather", graph.weight(f"{name}.weight", np.asarray(vectors, np.float32)), tokens, axis=0)


def one_hot(graph: Graph, tokens: str, vocabulary: int) -> str:
    """Vectors (..., vocabulary) with a one at the token."""
    return graph.node("OneHot", tokens, graph.constant([vocabulary], np.int64), graph.constant([0, 1]), axis=-1)


def layer_norm(
    graph: Graph, x: str, name: str, width: int, weight: np.ndarray | None, bias: np.ndarray | None, epsilon: float
) -> str:
    """(x - mean) / √(variance + ε), scaled and shifted where the layer does that."""
    scale = np.ones(width) if weight is None else weight
    # A shift by nothing is written too: onnxruntime 1.16 breaks down where it fuses a sum with a norm that has none.
    shift = np.zeros(width) if bias is None else bias
    weights = [
        graph.weight(f"{name}.{part}", np.asarray(numbers, np.float32))
        for part, numbers in (("weight", scale), ("bias", shift))
    ]
    return graph.node("LayerNormalization", x, *weights, axis=-1, epsilon=epsilon)


def gelu(graph: Graph, x: str) -> str:
    """x Φ(x), with the error function."""
    inner = graph.node("Erf", graph.node("Div", x, graph.constant(math.sqrt(2))))
    grown = graph.node("Mul", x, graph.node("Add", inner, graph.constant(1)))
    return graph.node("Mul", grown, graph.constant(0.5))


def input_map(
    graph: Graph, x: str, *, scale: float, offset: float, limit: float | None, dtype: str
) -> tuple[str, str | None]:
    """What the device is driven with, and how many values were clipped (int64): clip(scale u + offset, offset ± limit).

    Computed in the device's dtype, as the model's own map; the count is None where nothing is clipped.
    """
    kind = np.dtype(dtype)
    mapped = graph.node("Cast", x, to=_onnx_type(dtype)) if dtype != "float32" else x
    if scale != 1:
        mapped = graph.node("Mul", mapped, graph.constant(scale, kind))
    if offset:
        mapped = graph.node("Add", mapped, graph.constant(offset, kind))
    if limit is None:
        return mapped, None
    low, high = graph.constant(offset - limit, kind), graph.constant(offset + limit, kind)
    clipped = graph.node("Clip", mapped, low, high)
    outside = graph.node("Not", graph.node("Equal", mapped, clipped))
    # onnxruntime 1.16 does not survive a sum whose axes are left out.
    axes = graph.constant([0, 1, 2], np.int64)
    count = graph.node("ReduceSum", graph.node("Cast", outside, to=_onnx_type("int64")), axes, keepdims=0)
    return clipped, count


def from_device(graph: Graph, states: str, dtype: str) -> str:
    """States of a device as float32."""
    return states if dtype == "float32" else graph.node("Cast", states, to=_onnx_type("float32"))


def to_device(graph: Graph, x: str, dtype: str) -> str:
    """A float32 tensor in the dtype of a device."""
    return x if dtype == "float32" else graph.node("Cast", x, to=_onnx_type(dtype))


def _quantised_product(graph: Graph, x: str, name: str, weight: np.ndarray) -> str:
    """W x in 8-bit integers: one scale per row of W, kept; one for x, found as it comes.

    The nodes are those that runtimes fuse into one kernel.
    """
    check_finite(f"{name}.weight", weight)
    # In float64 a row may be too large, which `Graph.weight` refuses, or so small that it is 0.
    with np.errstate(over="ignore"):
        scale = (np.abs(weight).max(1) / _LARGEST).astype(np.float32)
    scale = np.where(scale == 0, np.float32(1), scale)
    integers = np.round(weight / scale[:, None]).clip(-_LARGEST, _LARGEST).astype(np.int8)
    matrix = graph.weight(f"{name}.weight_int8", np.ascontiguousarray(integers.T))
    x_integers, x_scale, x_zero = graph.node("DynamicQuantizeLinear", x, outputs=3)
    products = graph.node("MatMulInteger", x_integers, matrix, x_zero)
    scales = graph.node("Mul", x_scale, graph.weight(f"{name}.scale", scale))
    return graph.node("Mul", graph.node("Cast", products, to=_onnx_type("float32")), scales)


def _onnx_type(dtype: str) -> int:
    return {"float32": 1, "int64": 7, "float64": 11}[dtype]
