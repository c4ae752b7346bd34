"""Where each model is cut: at every crossing of a reservoir.

`plan_of(model)` knows the readouts and models of this package. What a segment computes is written here as a graph,
and its reference is the model's own code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Crossing, Value
from reservoir_hw.readout.export import layers
from reservoir_hw.readout.export.graph import Graph, Precision
from reservoir_hw.readout.export.parts import (
    TOKENS,
    LinearModel,
    LinearPart,
    LinearPlan,
    array,
    described_text,
    emit_drive,
    emit_embedding,
    emit_mix,
    emit_norm,
    emit_readout,
    in_torch,
    mapped_by,
    refuse_other_computation,
    shared_slots,
    states_value,
)
from reservoir_hw.readout.export.plan import Plan, Reference, Values
from reservoir_hw.readout.export.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir_hw.readout.models.laerc import LAERC, Block
    from reservoir_hw.readout.models.language_model import ReservoirLM


def plan_of(
    model: Any,
    reservoirs: Sequence[Reservoir] = (),
    precision: Precision = "fp32",
    *,
    recorded: Values | None = None,
) -> Plan:
    """A model cut at its reservoirs; `reservoirs` is the open device of a linear readout.

    `recorded` is what the device answered (`record_series`), which may say how large a linear readout's states are.
    Raises `ConfigurationError` for what is not known here.
    """
    if isinstance(model, LinearModel):
        if len(reservoirs) != 1:
            raise ConfigurationError(f"a {type(model).__name__} is exported with its reservoir: give it, open")
        return plan_of_readout(model, reservoirs[0].spec, precision, recorded=recorded)
    if is_torch_module(model):
        from reservoir_hw.readout.models.esn_language_model import EsnLM
        from reservoir_hw.readout.models.gated import GatedRecurrence, SequenceClassifier
        from reservoir_hw.readout.models.laerc import LAERC
        from reservoir_hw.readout.models.language_model import ReservoirLM

        if isinstance(model, LAERC | ReservoirLM | SequenceClassifier | GatedRecurrence):
            refuse_other_computation(model)
        if isinstance(model, LAERC):
            return plan_of_laerc(model, precision)
        if isinstance(model, ReservoirLM):
            return plan_of_language_model(model, precision)
        if isinstance(model, SequenceClassifier | GatedRecurrence):
            from reservoir_hw.readout.export.gated import plan_of_gated

            return plan_of_gated(model, precision)
        if isinstance(model, EsnLM):
            from reservoir_hw.readout.export.whole import whole_plan

            return whole_plan(model, (), precision)
    raise ConfigurationError(
        f"a {type(model).__name__} cannot be exported: known are linear readouts, ReservoirLM, LAERC, EsnLM and "
        "SequenceClassifier; a torch module of your own goes through export_module"
    )


def plan_of_readout(
    readout: LinearModel, reservoir: ReservoirSpec, precision: Precision = "fp32", *, recorded: Values | None = None
) -> Plan:
    """A linear readout of the states of a device, and of its inputs where it was trained with them (`LinearPart`).

    Inputs cross as they are, so there is one segment. `recorded` is what the device answered (`record_series`). Raises
    `ConfigurationError` for a device of another width.
    """
    linear = LinearPart(readout, reservoir, precision, recorded)
    inputs = Value(name="inputs", shape=(reservoir.inputs,), dtype=reservoir.dtype)
    states = Value(name="states_0", shape=(reservoir.nodes,), dtype=reservoir.dtype)
    graph = Graph(0, Weights(), precision)
    linear.emit(graph, graph.read(states), graph.read(inputs) if readout.input_connection else None)
    return LinearPlan(
        scale=linear.scale,
        model=type(readout).__name__,
        input=inputs,
        output=linear.output,
        output_meaning="values",
        weights=graph.weights,
        graphs=[graph],
        references=[lambda values: linear.reference(values["states_0"], values)],
        reservoirs=[reservoir],
        crossings=[Crossing(slot=0, after=0, drive="inputs", states="states_0")],
    )


def plan_of_language_model(model: ReservoirLM, precision: Precision = "fp32") -> Plan:
    """Embedding | reservoir | readout: two segments."""

    layer = model.layer
    weights = Weights()
    first = Graph(0, weights, precision)
    driven = emit_embedding(first, first.read(TOKENS), model.embedding)
    emit_drive(first, driven, layer, 0)
    last = Graph(1, weights, precision)
    states = layers.from_device(last, last.read(states_value(layer, 0)), layer.spec.dtype)
    about = described_text(model, f"{type(model).__name__}({type(model.readout).__name__})")
    last.give(about["output"], emit_readout(last, states, model.readout, features=layer.nodes))

    @in_torch(model)
    def drive(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return mapped_by(layer, model.embedding(values["tokens"]), 0)

    @in_torch(model)
    def read(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"outputs": model.readout(values["states_0"])}

    return Plan(
        **about,
        weights=weights,
        graphs=[first, last],
        references=[drive, read],
        reservoirs=[layer.spec],
        crossings=[Crossing(slot=0, after=1, drive="drive_0", states="states_0")],
    )


def plan_of_laerc(model: LAERC, precision: Precision = "fp32") -> Plan:
    """L blocks: L + 1 segments (Köster & Uchida 2026, eq. A1-A19); exp(β) and α are folded into the weights."""
    weights = Weights()
    blocks: list[Block] = list(model.blocks)  # pyright: ignore[reportAssignmentType]
    slots, reservoirs = shared_slots([block.reservoir for block in blocks])
    about = described_text(model, f"LAERC({len(blocks)}×{model.width})")
    graphs: list[Graph] = []
    references: list[Reference] = []
    for number in range(len(blocks) + 1):
        graph = Graph(number, weights, precision)
        graphs.append(graph)
        if number == 0:
            x = emit_embedding(graph, graph.read(TOKENS), model.embedding)
        else:
            x = graph.read(_carry(model.width, number - 1))
            states = graph.read(states_value(blocks[number - 1].reservoir, number - 1))
            x = emit_mix(graph, x, states, blocks[number - 1], f"blocks.{number - 1}")
        if number < len(blocks):
            block = blocks[number]
            emit_drive(graph, emit_norm(graph, x, block.norm_res, f"blocks.{number}.norm_res"), block.reservoir, number)
            graph.give(_carry(model.width, number), x)
        else:
            features = emit_norm(graph, x, model.norm, "norm")
            tied = layers.tied_projection(graph, features, "embedding", array(model.embedding.weight))
            graph.give(about["output"], tied)
        references.append(_laerc_reference(model, blocks, number))
    return Plan(
        **about,
        weights=weights,
        graphs=graphs,
        references=references,
        reservoirs=reservoirs,
        crossings=[
            Crossing(slot=slot, after=number + 1, drive=f"drive_{number}", states=f"states_{number}")
            for number, slot in enumerate(slots)
        ],
    )


def _laerc_reference(model: LAERC, blocks: list[Block], number: int) -> Reference:

    @in_torch(model)
    def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        if number == 0:
            x = model.embedding(values["tokens"])
        else:
            states = values[f"states_{number - 1}"]
            x = blocks[number - 1].mix(values[f"carry_{number - 1}"], states)
        if number == len(blocks):
            return {"outputs": model.readout(model.norm(x))}
        block = blocks[number]
        return {**mapped_by(block.reservoir, block.norm_res(x), number), f"carry_{number}": x}

    return reference


def _carry(width: int, number: int) -> Value:
    return Value(name=f"carry_{number}", shape=(width,))


def is_torch_module(model: object) -> bool:
    """Decided without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
