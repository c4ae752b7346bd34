"""Where a model crosses a reservoir: what drives the device, and what it answers."""

from __future__ import annotations

import torch
from torch import Tensor

from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Value
from reservoir_hw.readout.export.layers import LayerGraph
from reservoir_hw.readout.export.plan import EDGE
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer

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
