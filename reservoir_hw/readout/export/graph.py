"""Graphs in the making, ONNX nodes with the weights in a file beside them; and the plan of a model made of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, MissingExtra, ReservoirError
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Carried, Crossing, Precision, Segment, Value
from reservoir_hw.readout.export.unchanged import is_unchanged
from reservoir_hw.readout.linear.least_squares import FeatureScale

_ONNX_NAMES = {"float32": "F32", "float64": "F64", "int8": "I8", "int32": "I32", "int64": "I64"}

# Where a tensor may begin, so that a mapped file can be read by vector instructions.
ALIGNMENT = 64


@dataclass
class Weights:
    """Named arrays and their places in one safetensors file.

    What is added twice under the same name must be the same array: a tied weight is stored once.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, array: np.ndarray) -> str:
        """Keep an array; returns its name. Raises `ConfigurationError` for numbers that are not finite."""
        array = np.ascontiguousarray(array)
        check_finite(name, array)
        known = self.arrays.get(name)
        if known is not None and not (known.dtype == array.dtype and np.array_equal(known, array)):
            raise ConfigurationError(f"two different weights are both called {name}")
        self.arrays[name] = array
        return name

    def places(self) -> dict[str, tuple[int, int]]:
        """Offset in the file and length in bytes of each array."""
        ends = np.cumsum([len(self.header()), *(array.nbytes for array in self._ordered().values())]).tolist()
        return {name: (end, array.nbytes) for end, (name, array) in zip(ends, self._ordered().items(), strict=False)}

    def header(self) -> bytes:
        """The beginning of the file: the length of the description, and the description."""
        described: dict[str, Any] = {"__metadata__": {"format": "reservoir_hw.graphs"}}
        begin = 0
        for name, array in self._ordered().items():
            offsets = [begin, begin := begin + array.nbytes]
            kind = _ONNX_NAMES[array.dtype.name]
            described[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    def parts(self) -> Iterator[bytes | memoryview]:
        """The file, piece by piece."""
        yield self.header()
        for array in self._ordered().values():
            yield array.reshape(-1).view(np.uint8).data

    def _ordered(self) -> dict[str, np.ndarray]:
        # The widest numbers first: then each array begins at a multiple of the size of its numbers.
        return dict(sorted(self.arrays.items(), key=lambda item: -item[1].itemsize))


def check_finite(name: str, array: np.ndarray) -> None:
    """Raise `ConfigurationError` for NaN and infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigurationError(f"weight {name} is not finite: the model has diverged, or its file is broken")


try:
    import onnx
    import onnx.compose
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("export needs onnx: pip install 'reservoir-hw[export]'") from error

OPSET, IR_VERSION = 17, 8
"""Read by onnxruntime 1.16 and later."""

_TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64}


# Processors without integer dot products add two products of 8 bits in 16, which must not overflow: 2·255·63 < 2^15.
_LARGEST = 63


class Graph:
    """One segment of a model, written node by node, or layer by layer.

    Tensors have names; `node` makes new ones. Values have the axes (batch, time, *shape), both dynamic.

    Each method for a layer takes and returns names of tensors (..., width). Weights are arrays or torch tensors as the
    model keeps them: of a linear layer (out, in), as in torch. With `precision` int8, `linear` quantises its weights.
    """

    def __init__(self, number: int, weights: Weights, precision: Precision = "fp32") -> None:
        self.number = number
        self.weights = weights
        self.precision: Precision = precision
        self.reads: list[Value] = []
        self.gives: list[Value] = []
        self._axes: dict[str, tuple[str | int, ...]] = {}
        self._nodes: list[Any] = []
        self._given: list[tuple[str, str]] = []
        self._constants: dict[str, Any] = {}
        self._used: list[str] = []
        self._count = 0

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The weights that this graph uses."""
        return {name: self.weights.arrays[name] for name in self._used}

    @property
    def file(self) -> str:
        """Its place in the bundle."""
        return f"graphs/segment_{self.number}.onnx"

    @property
    def segment(self) -> Segment:
        """Its entry in the manifest."""
        return Segment(graph=self.file, reads=tuple(self.reads), gives=tuple(self.gives))

    def read(self, value: Value, axes: tuple[str, ...] = ("batch", "time")) -> str:
        """Declare an input; a carried value has the axes ("batch",)."""
        self.reads.append(value)
        self._axes[value.name] = () if value.scalar else axes
        return value.name

    def give(self, value: Value, tensor: str, axes: tuple[str, ...] = ("batch", "time")) -> None:
        """Declare an output and what it is."""
        self.gives.append(value)
        self._axes[value.name] = () if value.scalar else axes
        self._given.append((tensor, value.name))

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """The output of a node, or a list of them."""
        names = [self._new(operator) for _ in range(outputs)]
        self._nodes.append(helper.make_node(operator, list(inputs), names, name=names[0], **attributes))
        return names[0] if outputs == 1 else names

    def scan(
        self,
        step: Callable[[list[str], str], tuple[list[str], str]],
        states: Sequence[Value],
        initial: Sequence[str],
        sequence: str,
        width: int,
        dtype: str,
    ) -> tuple[list[str], str]:
        """Loop over the time axis: the last states, and what the steps gave, put together (batch, time, ...).

        `step` writes one step: names of the states and of one row (batch, width) of the sequence (batch, time, width)
        -> names of the next states and of its output. It may use weights, constants and tensors of this graph.
        """
        outside, self._nodes = self._nodes, []
        names = [self._new(f"scan_{value.name}") for value in states]
        row = self._new("scan_row")
        following, output = step(names, row)
        # Every output of a body must have a name of its own.
        given = [self.node("Identity", tensor) for tensor in (*following, output)]
        taken = [
            helper.make_tensor_value_info(name, _TYPES[value.dtype], ("batch", *value.shape))
            for name, value in zip(names, states, strict=True)
        ]
        body = helper.make_graph(
            self._nodes,
            self._new("scan_body"),
            [*taken, helper.make_tensor_value_info(row, _TYPES[dtype], ("batch", width))],
            [onnx.ValueInfoProto(name=name) for name in given],
        )
        self._nodes = outside
        *last, outputs = self.node(
            "Scan", *initial, sequence, outputs=len(given), body=body, num_scan_inputs=1,
            scan_input_axes=[1], scan_output_axes=[1],
        )  # fmt: skip
        return last, outputs

    def include(self, graph: Any, inputs: Mapping[str, str], kept: Mapping[str, tuple[str, np.ndarray]]) -> list[str]:
        """The outputs of an ONNX graph made elsewhere, whose names are changed so that none is used twice.

        `inputs` says which tensors its inputs are. Initialisers that `kept` holds become weights: its names ->
        names in the file of weights, and their numbers.
        """
        prefix = f"{self._new('included')}_"
        renamed = type(graph)()
        renamed.CopyFrom(graph)
        onnx.compose.add_prefix_graph(renamed, prefix, inplace=True)
        for name, tensor in inputs.items():
            self._nodes.append(helper.make_node("Identity", [tensor], [prefix + name]))
        for before, initializer in zip(graph.initializer, renamed.initializer, strict=True):
            if before.name in kept:
                weight = self.weight(*kept[before.name])
                self._nodes.append(helper.make_node("Identity", [weight], [initializer.name]))
            else:
                self._constants[initializer.name] = initializer
        self._nodes.extend(renamed.node)
        return [output.name for output in renamed.output]

    def weight(self, name: str, array: np.ndarray) -> str:
        """A weight, kept in the file of weights."""
        self.weights.add(name, array)
        if name not in self._used:
            self._used.append(name)
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A small array in the graph itself."""
        array = np.asarray(value, dtype)
        content = array.tobytes().hex() if array.nbytes <= 32 else hashlib.sha256(array.tobytes()).hexdigest()
        name = f"constant_{array.dtype.name}_{'x'.join(map(str, array.shape))}_{content}"
        self._constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def build(self, places: Mapping[str, tuple[int, int]], metadata: Mapping[str, str]) -> bytes:
        """The file, once it is known where the weights lie."""
        graph = helper.make_graph(
            self._with_outputs(),
            f"segment_{self.number}",
            [self._information(value) for value in self.reads],
            [self._information(value) for value in self.gives],
            [*self._constants.values(), *(self._external(name, places[name]) for name in self._used)],
        )
        model = helper.make_model(
            graph, producer_name="reservoir_hw", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(_without_external(model))
        return model.SerializeToString(deterministic=True)

    def _with_outputs(self) -> list[Any]:
        """The nodes. A node that makes an output carries its name: the runtime would execute a renaming node."""
        made = {name for node in self._nodes for name in node.output}
        inner = set(_read_inside(self._nodes))
        names, copies = dict[str, str](), []
        for tensor, name in self._given:
            if tensor in made - inner and tensor not in names:
                names[tensor] = name
            else:
                copies.append(helper.make_node("Identity", [names.get(tensor, tensor)], [name]))
        renamed = []
        for node in self._nodes:
            one = type(node)()
            one.CopyFrom(node)
            one.input[:] = [names.get(name, name) for name in node.input]
            one.output[:] = [names.get(name, name) for name in node.output]
            renamed.append(one)
        return renamed + copies

    def _information(self, value: Value) -> Any:
        shape = (*self._axes[value.name], *value.shape)
        return helper.make_tensor_value_info(value.name, _TYPES[value.dtype], shape)

    def _external(self, name: str, place: tuple[int, int]) -> Any:
        array = self.weights.arrays[name]
        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            dims=array.shape,
            data_location=TensorProto.EXTERNAL,
        )
        facts = {"location": "weights.safetensors", "offset": place[0], "length": place[1]}
        for key, fact in facts.items():
            tensor.external_data.add(key=key, value=str(fact))
        return tensor

    def _new(self, operator: str) -> str:
        self._count += 1
        return f"{operator}_{self._count}"

    # ---- layers

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
        if not hasattr(module, "emit"):
            write = _torch_layers().get(type(module).forward)
            return None if write is None or not is_unchanged(module) else write(self, module, x, name)
        if not is_unchanged(module, "emit"):
            return None
        try:
            return module.emit(self, x, name)
        except ReservoirError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"{name}: {type(module).__name__}.emit failed: {type(error).__name__}: {error}; correct it, or remove "
                "it, and torch.export reads forward"
            ) from error

    def linear(self, x: str, name: str, weight: Any, bias: Any, *, factor: float = 1.0, dtype: str = "float32") -> str:
        """`factor` times W x + b of x (..., in), W (out, in) and b (out,) or None, all in `dtype`."""
        weight = factor * array(weight)
        if self.precision == "int8":
            product = self._quantised_product(x, name, weight)
        else:
            product = self.node("MatMul", x, self.weight(f"{name}.weight", np.ascontiguousarray(weight.T, dtype)))
        if bias is None:
            return product
        return self.node("Add", product, self.weight(f"{name}.bias", np.asarray(factor * array(bias), dtype)))

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
        count = self.node("ReduceSum", self.node("Cast", outside, to=_TYPES["int64"]), axes, keepdims=0)
        return clipped, count

    def from_device(self, states: str, dtype: str) -> str:
        """States of a device as float32."""
        return states if dtype == "float32" else self.node("Cast", states, to=_TYPES["float32"])

    def to_device(self, x: str, dtype: str) -> str:
        """A float32 tensor in the dtype of a device; any tensor in float64."""
        return x if dtype == "float32" else self.node("Cast", x, to=_TYPES[dtype])

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
        return self.node("Mul", self.node("Cast", products, to=_TYPES["float32"]), scales)


def _read_inside(nodes: Iterable[Any]) -> Iterator[str]:
    """Tensors that the bodies of these nodes read."""
    for node in nodes:
        for attribute in node.attribute:
            for one in attribute.g.node:
                yield from one.input
            yield from _read_inside(attribute.g.node)


def _without_external(model: Any) -> Any:
    """A copy to be checked: the checker would look for the file of the weights, which is not there yet."""
    copy = type(model)()
    copy.CopyFrom(model)
    kept = []
    for tensor in copy.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            copy.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tuple(tensor.dims)))
        else:
            kept.append(tensor)
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy


# ---- A model cut at its reservoirs: graphs, what crosses between them, and what they are compared with.


EDGE = "_on_the_edge"
"""Behind the name of a count of clipped values: how many may be counted or not, as rounding decides."""

Values = dict[str, np.ndarray]
"""Arrays by the names of values."""

Reference = Callable[[Values], Values]
"""What a segment computes, by the model's own code: what it reads -> what it gives, and the `EDGE` of its counts."""


@dataclass
class Plan:
    """What is exported. `graphs`, `references` and the segments of the manifest are in the same order.

    `reservoirs` are the specs of the devices that the slots of the crossings name, as the model sees them.
    """

    model: str
    input: Value
    output: Value
    output_meaning: Literal["values", "logits"]
    graphs: list[Graph]
    references: list[Reference]
    reservoirs: list[ReservoirSpec] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    stepwise: bool = False
    whole_sequences: bool = False
    reads_last: bool = False
    vocabulary: int | None = None
    state_scale: FeatureScale | None = None
    """What states were like in training, where the device declares no range of them and the readout knows it."""

    @property
    def weights(self) -> Weights:
        """Those of all graphs, in one file."""
        return self.graphs[0].weights

    @property
    def target(self) -> Literal["segments", "whole"]:
        """Graphs beside devices, or one graph that needs none."""
        return "segments" if self.reservoirs else "whole"


# ---- Layers of torch.


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
