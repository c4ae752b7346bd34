"""Parts of models as graphs, and the model's own code as what they are compared with."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Value
from reservoir_hw.readout.export import layers
from reservoir_hw.readout.export.graph import Graph, Precision
from reservoir_hw.readout.export.plan import BOUND, EDGE, Plan, Reference, Values
from reservoir_hw.readout.linear.feature_scale import FeatureScale
from reservoir_hw.readout.linear.online import LMSReadout, RLSReadout
from reservoir_hw.readout.linear.ridge import RidgeReadout

if TYPE_CHECKING:
    from torch import Tensor, nn

    from reservoir_hw.readout.models.attention import AttentionReadout
    from reservoir_hw.readout.models.laerc import Block
    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer

TOKENS = Value(name="tokens", dtype="int64")

LinearModel = RidgeReadout | RLSReadout | LMSReadout

# Standard deviations from the mean that a feature is taken to reach, and how much of the bound one rounding of all
# products may take: the sums of products that large and of one sign are rounded as well.
_REACH = 3.0
_SHARE = 0.25


@dataclass
class LinearPlan(Plan):
    """That of a linear readout, and what its features are like where the device declares no range of its states."""

    scale: FeatureScale | None = None


def training_scale(readout: LinearModel) -> FeatureScale | None:
    """Mean and standard deviation of each feature in training, where the readout knows them.

    RLS and LMS keep those by which they standardise (without a bias 0 and the root mean square).
    """
    return readout.linear_form().scale


def check_linear(readout: LinearModel, reservoir: ReservoirSpec) -> None:
    """Raise `ConfigurationError` for a linear readout of another device, `NotSolved` for one without weights."""
    features = readout.linear_form().weights.shape[1]
    inputs = reservoir.inputs if readout.input_connection else 0
    if features != reservoir.nodes + inputs:
        raise ConfigurationError(
            f"the readout reads {features} features, the reservoir has {reservoir.nodes} nodes"
            + (f" and {inputs} inputs" if inputs else "")
        )


class LinearPart:
    """W x + b of states, and of inputs where the readout was trained with them: as a graph, and as it is.

    Computed in float64 where sums of features and large weights that cancel would lose too much in float32, as those of
    a ridge regression with a small penalty do. How large features are, the device's ranges say; where it declares none,
    the readout's training (`training_scale`); else what was `recorded`. Where nothing says it, it is float64, too: what
    float32 loses on some recorded steps says little of what it loses later. Raises as `check_linear`.
    """

    def __init__(
        self, readout: LinearModel, reservoir: ReservoirSpec, precision: Precision, recorded: Values | None = None
    ) -> None:
        check_linear(readout, reservoir)
        self.readout = readout
        self.dtype = reservoir.dtype
        known = training_scale(readout) or (None if recorded is None else _scale_of(readout, recorded))
        self.scale = known if reservoir.state_range is None else None
        self.double = precision == "fp32" and _cancels(readout.weights_, reservoir, known)

    @property
    def output(self) -> Value:
        """What it gives."""
        return Value(name="outputs", shape=(len(self.readout.bias_),))

    def emit(self, graph: Graph, states: str, inputs: str | None) -> None:
        """Give the output of states and inputs in the device's dtype."""
        features = [name for name in (states, inputs) if name is not None]
        if not self.double:
            features = [layers.from_device(graph, name, self.dtype) for name in features]
        x = features[0] if inputs is None else graph.node("Concat", *features, axis=-1)
        linear = layers.linear_in_double if self.double else layers.linear
        graph.give(self.output, linear(graph, x, "readout", self.readout.weights_, self.readout.bias_))

    def reference(self, states: np.ndarray, values: Values) -> Values:
        """What `emit` gives, by the readout's own code; `values` hold the inputs, where it reads them."""
        exactness = np.dtype(np.float64 if self.double else self.dtype)
        given = values["inputs"].astype(exactness) if self.readout.input_connection else None
        return {"outputs": self.readout.predict(states.astype(exactness), given).astype(np.float32)}


def _cancels(weights: np.ndarray, reservoir: ReservoirSpec, scale: FeatureScale | None) -> bool:
    """Whether rounding to float32 may move an output by more than the certificate allows; True where nobody knows."""
    lost = np.zeros(len(weights))
    parts = ((slice(reservoir.nodes), reservoir.state_range), (slice(reservoir.nodes, None), reservoir.input_range))
    for part, limits in parts:
        sizes = np.abs(weights[:, part])
        if not sizes.size:
            continue
        if limits is not None:
            largest, share = max(map(abs, limits)), 1.0
        elif scale is not None:
            largest, share = np.abs(scale.centre[part]) + _REACH * scale.spread[part], _SHARE
        else:
            return True
        lost += (sizes * largest).sum(1) / share
    return bool(lost.max() * np.finfo(np.float32).epsneg > BOUND)


def _scale_of(readout: LinearModel, recorded: Values) -> FeatureScale | None:
    """What recorded features are like."""
    names = ("states_0", "inputs") if readout.input_connection else ("states_0",)
    features = np.concatenate([np.asarray(recorded[name], np.float64) for name in names], axis=-1)
    return (
        FeatureScale.of([features], centred=True, precision=float(np.finfo(np.float32).eps)) if features.size else None
    )


def described_text(model: Any, name: str) -> dict[str, Any]:
    """The fields of a plan that every language model shares."""
    return {
        "model": name,
        "input": TOKENS,
        "output": Value(name="outputs", shape=(model.vocabulary,)),
        "output_meaning": "logits",
        "vocabulary": model.vocabulary,
    }


def array(tensor: Tensor | None) -> Any:
    """The numbers of a tensor, or None."""
    return None if tensor is None else tensor.detach().float().cpu().numpy()


def states_value(layer: ReservoirLayer, number: int) -> Value:
    """What the device of crossing `number` answers."""
    return Value(name=f"states_{number}", shape=(layer.nodes,), dtype=layer.spec.dtype)


def shared_slots(layers_of_model: list[ReservoirLayer]) -> tuple[list[int], list[ReservoirSpec]]:
    """The number of each layer's device, and the devices; layers may share one."""
    devices: list[Any] = []
    slots = []
    for layer in layers_of_model:
        known = [number for number, device in enumerate(devices) if device is layer.reservoir]
        if not known:
            devices.append(layer.reservoir)
        slots.append(known[0] if known else len(devices) - 1)
    return slots, [device.spec for device in devices]


def emit_embedding(graph: Graph, tokens: str, module: nn.Module) -> str:
    """Vectors of tokens. Raises `ConfigurationError` for an embedding that is not known here."""
    from torch import nn as torch_nn

    from reservoir_hw.readout.models.embeddings import OneHot, SparseEmbedding

    if isinstance(module, OneHot):
        return layers.one_hot(graph, tokens, module.num_embeddings)
    if isinstance(module, SparseEmbedding):
        dense = np.zeros((module.num_embeddings, module.embedding_dim), np.float32)
        np.add.at(dense, (np.arange(len(dense))[:, None], module.links.cpu().numpy()), array(module.values))
        return layers.embedding(graph, tokens, "embedding", dense)
    if isinstance(module, torch_nn.Embedding):
        return layers.embedding(graph, tokens, "embedding", array(module.weight))
    raise ConfigurationError(
        f"an embedding of type {type(module).__name__} cannot be exported: use OneHot, random_embedding or "
        "given_embedding"
    )


def emit_readout(graph: Graph, states: str, module: nn.Module, name: str = "readout", *, features: int) -> str:
    """Logits of states (batch, time, features): linear, low-rank, attention, or a module of the user's own.

    Raises `ConfigurationError` for a module that `export_module` refuses, or that mixes positions.
    """
    import torch

    from reservoir_hw.readout.models.attention import AttentionReadout
    from reservoir_hw.readout.models.softmax import LowRankReadout

    # A subclass with a `forward` of its own is a module of the user's.
    forward = type(module).forward
    if isinstance(module, AttentionReadout) and forward is AttentionReadout.forward:
        return _emit_attention(graph, states, module, name)
    if isinstance(module, LowRankReadout) and forward is LowRankReadout.forward:
        return emit_linear(graph, emit_linear(graph, states, module.B, f"{name}.B"), module.A, f"{name}.A")
    if isinstance(module, torch.nn.Linear) and forward is torch.nn.Linear.forward:
        return emit_linear(graph, states, module, name)
    from reservoir_hw.readout.export.module import check_positions, emit_module

    example = torch.zeros(1, 1, features)
    module = _in_single(module, example)
    check_positions(module, example)
    return emit_module(graph, states, module, example, name)


def _in_single(module: nn.Module, example: Tensor) -> nn.Module:
    """The module, or a copy of it that takes single precision, in which the graph computes."""
    import torch

    from reservoir_hw.readout.export.module import outputs, unseen
    from reservoir_hw.readout.models.evaluating import evaluating

    def is_single(one: nn.Module) -> bool:
        try:
            with evaluating(one), on_cpu(one):
                return getattr(one(example), "dtype", None) == torch.float32
        except RuntimeError:
            return False

    def agree(one: nn.Module, other: nn.Module) -> bool:
        trial = unseen(example, 2, 3)
        answers, expected = outputs(one, trial), outputs(other, trial)
        return bool(np.abs(answers - expected).max() <= BOUND * max(1.0, np.abs(expected).max()))

    if not any(tensor.dtype == torch.float64 for tensor in (*module.parameters(), *module.buffers())):
        return module
    try:
        single = copy.deepcopy(module).float()
        # One that needs double, or computes in it whatever it is given, stays as it is.
        if is_single(module) and not (is_single(single) and agree(single, module)):
            return module
        return single
    except Exception as error:
        if is_single(module):
            return module
        raise ConfigurationError(
            f"a readout of type {type(module).__name__} computes in double and cannot be copied: {error}; make it "
            "single precision (.float()) before the export"
        ) from error


# What a graph shows of a module is what these compute.
_COMPUTING = ("begin", "forward", "features", "advance", "mix", "map_inputs", "drives", "respond")


def refuse_other_computation(model: nn.Module) -> None:
    """Raise `ConfigurationError` where a part of the model computes other things than its graphs would.

    That is a subclass of the package's own models, blocks, layers or candidates with a method of its own, or a hook.
    Readouts and embeddings are called as they are, and compared.
    """
    from reservoir_hw.readout.models.gated import Candidate, GatedRecurrence, SequenceClassifier
    from reservoir_hw.readout.models.laerc import Block
    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer
    from reservoir_hw.readout.models.token_model import TokenModel

    kinds = (TokenModel, Block, ReservoirLayer, GatedRecurrence, SequenceClassifier, Candidate)
    for name, part in model.named_modules():
        if not isinstance(part, kinds):
            continue
        kind = next(one for one in type(part).__mro__ if one.__module__.startswith("reservoir_hw."))
        if inspect.isabstract(kind):
            continue
        what = f"{type(part).__name__} ({name or 'the model'})"
        for method in _COMPUTING:
            if method in vars(part):
                raise ConfigurationError(f"{what} had its {method} replaced, which no graph computes: undo it")
            if getattr(type(part), method, None) is not getattr(kind, method, None):
                raise ConfigurationError(
                    f"{what} has its own {method}, which the graphs of a {kind.__name__} would not compute: export "
                    f"a {kind.__name__}, or its parts by export_module"
                )
        if part._forward_hooks or part._forward_pre_hooks:
            raise ConfigurationError(f"{what} has a hook, which its graphs would not compute: remove it")


def emit_linear(graph: Graph, x: str, module: Any, name: str, *, factor: float = 1.0) -> str:
    """`factor` times a linear layer."""
    bias = array(module.bias)
    return layers.linear(graph, x, name, factor * array(module.weight), None if bias is None else factor * bias)


def emit_norm(graph: Graph, x: str, module: Any, name: str) -> str:
    """A LayerNorm over the last axis."""
    (width,) = module.normalized_shape
    return layers.layer_norm(graph, x, name, width, array(module.weight), array(module.bias), module.eps)


def emit_drive(graph: Graph, x: str, layer: ReservoirLayer, number: int) -> None:
    """What crossing `number` drives the device with, through the layer's map; and how many values it clipped."""
    dtype = layer.spec.dtype
    mapped, clipped = layers.input_map(
        graph, x, scale=layer.scale, offset=layer.offset, limit=layer.limit, dtype=dtype
    )  # fmt: skip
    graph.give(Value(name=f"drive_{number}", shape=(layer.inputs,), dtype=dtype), mapped)
    if clipped is not None:
        graph.give(Value(name=f"clipped_{number}", dtype="int64", scalar=True), clipped)


def mapped_by(layer: ReservoirLayer, x: Tensor, number: int) -> dict[str, Tensor]:
    """The reference of `emit_drive`; and how many values lie so near to a limit that rounding decides."""
    import torch

    before = layer.saturations
    mapped = layer.map_inputs(x)
    found = {f"drive_{number}": mapped}
    if layer.limit is not None:
        found[f"clipped_{number}"] = torch.tensor(layer.saturations - before)
        from_middle = (x.to(mapped.dtype) * layer.scale).abs()
        near = BOUND * max(1.0, abs(layer.offset) + layer.limit)
        found[f"clipped_{number}{EDGE}"] = ((from_middle - layer.limit).abs() <= near).sum()
    layer.saturations = before
    return found


def _emit_attention(graph: Graph, states: str, module: AttentionReadout, name: str) -> str:
    """Eq. 3-5, the nodes summed first, as the module does."""
    nodes, hidden = module.nodes, module.hidden
    h = graph.node("Relu", emit_linear(graph, states, module.net, f"{name}.net"))
    # Rows i·hidden + k: what h_k contributes to element i of r_o; then one row per element for the biases.
    weight = array(module.attention.weight).reshape(hidden, nodes, hidden).transpose(0, 2, 1)
    offset = array(module.attention.bias).reshape(hidden, nodes)
    rows = np.concatenate([weight.reshape(hidden * hidden, nodes), offset])
    products = layers.linear(graph, states, f"{name}.attention", rows, None)
    squares, offsets = graph.node(
        "Split", products, graph.constant([hidden * hidden, hidden], np.int64), axis=-1, outputs=2
    )  # fmt: skip
    matrices = graph.node("Reshape", squares, graph.constant([0, 0, hidden, hidden], np.int64))
    column = graph.node("Unsqueeze", h, graph.constant([-1], np.int64))
    summed = graph.node("Squeeze", graph.node("MatMul", matrices, column), graph.constant([-1], np.int64))
    return emit_linear(graph, graph.node("Add", summed, offsets), module.out, f"{name}.out")


def emit_mix(graph: Graph, x: str, states: str, block: Block, name: str) -> str:
    """Eq. A6-A16 of a block."""
    from torch import nn as torch_nn

    measured = layers.from_device(graph, states, block.reservoir.spec.dtype)
    normed = emit_norm(graph, measured, block.norm_states, f"{name}.norm_states")
    hidden = layers.gelu(graph, emit_linear(graph, normed, block.reservoir_mlp[0], f"{name}.reservoir_mlp.0"))
    growth = float(block.beta.detach().exp())
    r = emit_linear(graph, hidden, block.reservoir_mlp[2], f"{name}.reservoir_mlp.2", factor=growth)
    both = emit_norm(graph, graph.node("Concat", x, r, axis=-1), block.norm_mix, f"{name}.norm_mix")
    if isinstance(block.gate, torch_nn.Sequential):
        inner = layers.gelu(graph, emit_linear(graph, both, block.gate[0], f"{name}.gate.0"))
        gate = emit_linear(graph, inner, block.gate[2], f"{name}.gate.2")
    else:
        gate = emit_linear(graph, both, block.gate, f"{name}.gate")
    # g r + (1 - g) x
    change = graph.node("Mul", graph.node("Sigmoid", gate), graph.node("Sub", r, x))
    m = graph.node("Add", x, change)
    inner = emit_norm(graph, m, block.norm_ffn, f"{name}.norm_ffn")
    hidden = layers.gelu(graph, emit_linear(graph, inner, block.ffn[0], f"{name}.ffn.0"))
    alpha = float(block.alpha.detach())
    return graph.node("Add", m, emit_linear(graph, hidden, block.ffn[2], f"{name}.ffn.2", factor=alpha))


def in_torch(model: nn.Module) -> Callable[[Callable[[dict[str, Tensor]], dict[str, Tensor]]], Reference]:
    """A reference in torch as one of arrays; the model computes in evaluation mode, in its own precision."""
    import torch

    from reservoir_hw.readout.models.evaluating import evaluating

    def decorate(compute: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Reference:
        def reference(values: Values) -> Values:
            weights = (tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point())
            dtype = next((tensor.dtype for tensor in weights), torch.get_default_dtype())
            with evaluating(model), on_cpu(model):
                tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}
                given = {name: one.to(dtype) if one.is_floating_point() else one for name, one in tensors.items()}
                return {name: value.numpy() for name, value in compute(given).items()}

        return reference

    return decorate


@contextmanager
def on_cpu(model: nn.Module) -> Iterator[None]:
    """The model on the CPU meanwhile, afterwards where it was."""
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    if device is None or device.type == "cpu":
        yield
        return
    model.to("cpu")
    try:
        yield
    finally:
        model.to(device)
