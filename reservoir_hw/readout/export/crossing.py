"""Where a model crosses a reservoir: what drives the device, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Value
from reservoir_hw.readout.export.layers import LayerGraph
from reservoir_hw.readout.export.plan import EDGE, Reference, Values
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer
from reservoir_hw.readout.models.token_model import evaluating

_NEAR = 1e-5
"""Of the largest value of a drive: so near to a limit, rounding decides what is clipped."""


def emit_map(graph: LayerGraph, x: str, layer: ReservoirLayer) -> tuple[str, str | None]:
    """The layer's map into the range of its device, and how many values it clipped."""
    return graph.input_map(x, scale=layer.scale, offset=layer.offset, limit=layer.limit, dtype=layer.spec.dtype)


def emit_drive(graph: LayerGraph, x: str, layer: ReservoirLayer, number: int) -> None:
    """Give what crossing `number` drives the device with, and how many values the map clipped."""
    mapped, clipped = emit_map(graph, x, layer)
    graph.give(Value(name=f"drive_{number}", shape=(layer.inputs,), dtype=layer.spec.dtype), mapped)
    if clipped is not None:
        graph.give(Value(name=f"clipped_{number}", dtype="int64", scalar=True), clipped)


def read_states(graph: LayerGraph, layer: ReservoirLayer, number: int) -> str:
    """What the device of crossing `number` answered, as float32."""
    states = Value(name=f"states_{number}", shape=(layer.nodes,), dtype=layer.spec.dtype)
    return graph.from_device(graph.read(states), layer.spec.dtype)


def mapped_by(layer: ReservoirLayer, x: Tensor, number: int) -> dict[str, Tensor]:
    """The reference of `emit_drive`; and how many values lie so near to a limit that rounding decides."""
    before = layer.saturations
    mapped = layer.map_inputs(x)
    found = {f"drive_{number}": mapped}
    if layer.limit is not None:
        found[f"clipped_{number}"] = torch.tensor(layer.saturations - before)
        from_middle = (x.to(mapped.dtype) * layer.scale).abs()
        near = _NEAR * max(1.0, abs(layer.offset) + layer.limit)
        found[f"clipped_{number}{EDGE}"] = ((from_middle - layer.limit).abs() <= near).sum()
    layer.saturations = before
    return found


def shared_slots(layers: list[ReservoirLayer]) -> tuple[list[int], list[ReservoirSpec]]:
    """The number of each layer's device, and the devices; layers may share one."""
    devices = {id(layer.reservoir): layer.spec for layer in layers}
    order = list(devices)
    return [order.index(id(layer.reservoir)) for layer in layers], list(devices.values())


# ---- What a graph is compared with: torch modules as they compute, in evaluation mode, on the CPU, as arrays.


Compute = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def in_torch(model: nn.Module) -> Callable[[Compute], Reference]:
    """A reference in torch as one of arrays; the model computes in evaluation mode, in its own precision."""

    def decorate(compute: Compute) -> Reference:
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
