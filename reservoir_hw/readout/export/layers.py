"""Layers of networks as ONNX nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, ReservoirError
from reservoir_hw.readout.export.graph import Graph, check_finite


def is_unchanged(module: Any, statement: str | None = None) -> bool:
    """Whether a torch module computes what its method `statement` says; without one, what its class computes."""
    return _change(module, type(module) if statement is None else _defining(module, statement)) is None


def refuse_changes(model: Any) -> None:
    """Raise `ConfigurationError` where a part of a torch module computes other things than its graphs would.

    Readouts and embeddings are not looked at: `LayerGraph.emit` does that.
    """
    for name, part in model.named_modules():
        stating = _defining(part, "exported_methods")
        change = None if stating is None else _change(part, stating)
        if change is not None:
            raise ConfigurationError(f"{type(part).__name__} ({name or 'the model'}) {change}")


def _defining(part: Any, name: str) -> Any:
    """The class of a module that defines a name."""
    return next((kind for kind in type(part).__mro__ if name in vars(kind)), None)


def _change(module: Any, stating: Any) -> str | None:
    for method in getattr(stating, "exported_methods", ("forward",)):
        if method in vars(module):
            return f"had its {method} replaced, which no graph computes: undo it"
        if getattr(type(module), method) is not getattr(stating, method):
            return (
                f"has its own {method}, which the graphs of a {stating.__name__} would not compute: export a "
                f"{stating.__name__}, or its parts by export_module"
            )
    if module._forward_hooks or module._forward_pre_hooks:
        return "has a hook, which its graphs would not compute: remove it"
    return None


# Processors without integer dot products add two products of 8 bits in 16, which must not overflow: 2·255·63 < 2^15.
_LARGEST = 63


class LayerGraph(Graph):
    """A graph that is written layer by layer.

    Each method takes and returns names of tensors (..., width). Weights are arrays or torch tensors as the model keeps
    them: of a linear layer (out, in), as in torch.
    """

    def emit(self, module: Any, x: str, name: str) -> str:
        """A torch module, by its own `emit` or as one of torch's layers; its weights are called `name`.

        Raises `ConfigurationError` for a module that does not say how it is written.
        """
        written = self.emitted(module, x, name)
        if written is None:
            raise ConfigurationError(
                f"{name} of type {type(module).__name__} cannot be exported: it has no method emit for what its "
                "forward computes (an embedding: use OneHot, random_embedding or given_embedding)"
            )
        return written

    def emitted(self, module: Any, x: str, name: str) -> str | None:
        """As `emit`; None, and nothing written, for a module that does not say how it is written."""
        if hasattr(module, "emit"):
            return self._by_itself(module, x, name) if is_unchanged(module, "emit") else None
        write = _torch_layers().get(type(module).forward)
        return None if write is None or not is_unchanged(module) else write(self, module, x, name)

    def _by_itself(self, module: Any, x: str, name: str) -> str:
        try:
            return module.emit(self, x, name)
        except ReservoirError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"{name}: {type(module).__name__}.emit failed: {type(error).__name__}: {error}; correct it, or remove "
                "it, and torch.export reads forward"
            ) from error

    def linear(self, x: str, name: str, weight: Any, bias: Any, *, factor: float = 1.0) -> str:
        """`factor` times W x + b of x (..., in), W (out, in) and b (out,) or None."""
        weight = factor * array(weight)
        if self.precision == "int8":
            product = self._quantised_product(x, name, weight)
        else:
            product = self.node("MatMul", x, self.weight(f"{name}.weight", np.ascontiguousarray(weight.T, np.float32)))
        if bias is None:
            return product
        return self.node("Add", product, self.weight(f"{name}.bias", np.asarray(factor * array(bias), np.float32)))

    def linear_in_double(self, x: str, name: str, weight: np.ndarray, bias: np.ndarray) -> str:
        """W x + b of x (..., in) in any precision, computed and given in float64."""
        wide = self.node("Cast", x, to=_onnx_type("float64"))
        matrix = self.weight(f"{name}.weight", np.ascontiguousarray(weight.T, np.float64))
        product = self.node("MatMul", wide, matrix)
        return self.node("Add", product, self.weight(f"{name}.bias", np.asarray(bias, np.float64)))

    def tied_projection(self, x: str, name: str, weight: Any) -> str:
        """W x with the rows of an embedding, W (out, in): stored as the embedding stores it, once."""
        if self.precision == "int8":
            return self._quantised_product(x, name, array(weight))
        matrix = self.weight(f"{name}.weight", np.asarray(array(weight), np.float32))
        return self.node("MatMul", x, self.node("Transpose", matrix, perm=[1, 0]))

    def embedding(self, tokens: str, name: str, vectors: Any) -> str:
        """Vectors (..., width) of tokens (...), from (vocabulary, width)."""
        matrix = self.weight(f"{name}.weight", np.asarray(array(vectors), np.float32))
        return self.node("Gather", matrix, tokens, axis=0)

    def one_hot(self, tokens: str, vocabulary: int) -> str:
        """Vectors (..., vocabulary) with a one at the token."""
        depth, values = self.constant([vocabulary], np.int64), self.constant([0, 1])
        return self.node("OneHot", tokens, depth, values, axis=-1)

    def layer_norm(self, x: str, name: str, width: int, weight: Any, bias: Any, epsilon: float) -> str:
        """(x - mean) / √(variance + ε), scaled and shifted where weight and bias are not None."""
        scale = np.ones(width) if weight is None else array(weight)
        # A shift by nothing is written too: onnxruntime 1.16 breaks down where it fuses a sum with a norm without one.
        shift = np.zeros(width) if bias is None else array(bias)
        weights = [
            self.weight(f"{name}.{part}", np.asarray(numbers, np.float32))
            for part, numbers in (("weight", scale), ("bias", shift))
        ]
        return self.node("LayerNormalization", x, *weights, axis=-1, epsilon=epsilon)

    def gelu(self, x: str) -> str:
        """x Φ(x), with the error function."""
        inner = self.node("Erf", self.node("Div", x, self.constant(math.sqrt(2))))
        grown = self.node("Mul", x, self.node("Add", inner, self.constant(1)))
        return self.node("Mul", grown, self.constant(0.5))

    def input_map(self, x: str, layer: Any) -> tuple[str, str | None]:
        """A reservoir layer's clip(scale u + offset, offset ± limit), its device's drive, and how many were clipped.

        Computed in the device's dtype, as the model's own map; the count (int64) is None where nothing is clipped.
        """
        offset, limit, kind = layer.offset, layer.limit, np.dtype(layer.spec.dtype)
        mapped = self.to_device(x, layer.spec.dtype)
        if layer.scale != 1:
            mapped = self.node("Mul", mapped, self.constant(layer.scale, kind))
        if offset:
            mapped = self.node("Add", mapped, self.constant(offset, kind))
        if limit is None:
            return mapped, None
        low, high = self.constant(offset - limit, kind), self.constant(offset + limit, kind)
        clipped = self.node("Clip", mapped, low, high)
        outside = self.node("Not", self.node("Equal", mapped, clipped))
        # onnxruntime 1.16 does not survive a sum whose axes are left out.
        axes = self.constant([0, 1, 2], np.int64)
        count = self.node("ReduceSum", self.node("Cast", outside, to=_onnx_type("int64")), axes, keepdims=0)
        return clipped, count

    def from_device(self, states: str, dtype: str) -> str:
        """States of a device as float32."""
        return states if dtype == "float32" else self.node("Cast", states, to=_onnx_type("float32"))

    def to_device(self, x: str, dtype: str) -> str:
        """A float32 tensor in the dtype of a device."""
        return x if dtype == "float32" else self.node("Cast", x, to=_onnx_type(dtype))

    def _quantised_product(self, x: str, name: str, weight: np.ndarray) -> str:
        """W x in 8-bit integers: one scale per row of W, kept; one for x, found as it comes.

        The nodes are those that runtimes fuse into one kernel.
        """
        check_finite(f"{name}.weight", weight)
        # In float64 a row may be too large, which `Graph.weight` refuses, or so small that it is 0.
        with np.errstate(over="ignore"):
            scale = (np.abs(weight).max(1) / _LARGEST).astype(np.float32)
        scale = np.where(scale == 0, np.float32(1), scale)
        integers = np.round(weight / scale[:, None]).clip(-_LARGEST, _LARGEST).astype(np.int8)
        matrix = self.weight(f"{name}.weight_int8", np.ascontiguousarray(integers.T))
        x_integers, x_scale, x_zero = self.node("DynamicQuantizeLinear", x, outputs=3)
        products = self.node("MatMulInteger", x_integers, matrix, x_zero)
        scales = self.node("Mul", x_scale, self.weight(f"{name}.scale", scale))
        return self.node("Mul", self.node("Cast", products, to=_onnx_type("float32")), scales)


def array(weight: Any) -> np.ndarray:
    """The numbers of a torch tensor in single precision; an array as it is."""
    return weight.detach().float().cpu().numpy() if hasattr(weight, "detach") else np.asarray(weight)


def _torch_layers() -> dict[Any, Any]:
    """Torch's own layers, which cannot be asked, by the function that computes them."""
    from torch import nn

    return {
        nn.Linear.forward: lambda graph, layer, x, name: graph.linear(x, name, layer.weight, layer.bias),
        nn.Embedding.forward: lambda graph, layer, x, name: graph.embedding(x, name, layer.weight),
        nn.LayerNorm.forward: lambda graph, layer, x, name: graph.layer_norm(
            x, name, layer.normalized_shape[-1], layer.weight, layer.bias, layer.eps
        ),
    }


def _onnx_type(dtype: str) -> int:
    return {"float32": 1, "int64": 7, "float64": 11}[dtype]
