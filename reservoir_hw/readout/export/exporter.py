"""From a trained model to a bundle: cut, written as graphs, compared, and packed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.series_format import SeriesFormat
from reservoir_hw.core.tokenizer import Tokenizer
from reservoir_hw.core.validation import whole_number
from reservoir_hw.readout.edge.bundle import write_bundle
from reservoir_hw.readout.edge.manifest import WEIGHTS, Loss, Manifest, Ranges, Slot
from reservoir_hw.readout.edge.sessions import session_of
from reservoir_hw.readout.edge.verification import record_probe
from reservoir_hw.readout.export.certificate import certify, compared, random_inputs
from reservoir_hw.readout.export.graph import Plan, Precision, Values
from reservoir_hw.readout.export.segments import plan_of

Metrics = Mapping[str, Mapping[str, float]]

# Steps of the golden inputs and outputs, by which a copied bundle is tried.
_GOLDEN_STEPS = 8


def export_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    reservoirs: Sequence[Reservoir] | Reservoir = (),
    precision: Precision = "fp32",
    recorded: Values | None = None,
    spread: np.ndarray | None = None,
    probe: bool = True,
    repetitions: int | None = None,
    tokenizer: Tokenizer | None = None,
    metrics: Metrics | None = None,
    facts: Mapping[str, Any] | None = None,
    series: SeriesFormat | None = None,
    washout: int = 0,
    ranges: Ranges | None = None,
    loss: Loss | None = None,
) -> Manifest:
    """Write a trained model as a bundle; returns its manifest.

    Parameters
    ----------
    model
        A linear readout (`RidgeReadout`, `RLSReadout`, `LMSReadout`), or a model that says where its reservoirs are
        (`ReservoirLM` with any readout, `LAERC`, `SequenceClassifier`, or your own: docs/extending.md), or what was
        cut already: the plan of `export_module` or `whole_plan`.
    path
        `NAME.rhw` is written as one file, any other name as a folder.
    reservoirs
        The open device of a linear readout, or those of a plan; models know theirs.
    precision
        "int8" quantises the weights of linear layers, and their inputs as they come.
    recorded
        What a device answered (`record_text`, `record_series`): the graphs are compared on it too. Where neither the
        device nor the training of a linear readout says how large states are, it does.
    spread
        How much each output moves (outputs,), the yardstick of errors (`edge.verification.spread_of`); where it is
        not given, what was recorded says it.
    probe
        Record the golden response of each device, for `EdgeRunner.verify_probe`. It drives them.
    repetitions
        How often each input was played and averaged in training; as a linear readout says, unless given.
    metrics
        Of the task, before and after, for the certificate.
    facts
        Further entries of the provenance.
    series
        What the user's numbers are, if the model works with scaled ones.
    washout
        How many answers from rest are not to be used.
    ranges
        What inputs and targets were in training, in the user's numbers.
    loss
        What int8 costs, where it was judged.

    Raises
    ------
    ConfigurationError
        The model cannot be exported, or a graph is further from it than the certificate's bound.
    MissingExtra
        onnx or onnxruntime is not installed.
    """
    devices = [reservoirs] if isinstance(reservoirs, Reservoir) else list(reservoirs)
    if isinstance(model, Plan):
        plan = model
    else:
        plan = plan_of(model, devices, precision, recorded=recorded, spread=spread)
        repetitions = getattr(model, "repetitions_", 1) if repetitions is None else repetitions
        known = [layer.reservoir for layer in getattr(model, "reservoir_layers", [])]
        devices = devices or list({id(device): device for device in known}.values())
    if tokenizer is not None and tokenizer.vocabulary != plan.vocabulary:
        raise ConfigurationError(f"the tokenizer has {tokenizer.vocabulary} tokens, the model {plan.vocabulary}")
    repetitions = whole_number("repetitions", 1 if repetitions is None else repetitions)
    _check_repetitions(plan, repetitions)
    record = {**provenance.collect({}), **(facts or {})}
    if precision == "int8" and not any(array.dtype == np.int8 for array in plan.weights.arrays.values()):
        raise ConfigurationError(
            f"nothing of {plan.model} can be rounded to int8: it has no linear layer that it writes itself (emit); "
            "export it in fp32"
        )
    graphs, sessions = built(plan, _metadata(plan, record))
    exact = precision == "fp32"
    certificate, spreads = certify(
        plan, sessions, recorded=recorded, spread=spread, washout=washout, bounded=exact, metrics=metrics
    )
    files: dict[str, bytes | Iterable[bytes | memoryview]] = dict(graphs)
    files[WEIGHTS] = plan.weights.parts()
    files["golden.safetensors"] = save(spreads | _golden(plan, sessions, recorded, washout, exact=exact))
    slots = []
    for number, spec in enumerate(plan.reservoirs):
        name = None
        if probe and number < len(devices):
            name = f"probe_{number}.safetensors"
            files[name] = save(record_probe(devices[number]))
        identity = spec.identity.model_dump(mode="json")
        slots.append(
            Slot(
                inputs=spec.inputs,
                nodes=spec.nodes,
                dtype=spec.dtype,
                fingerprint=identity.pop("fingerprint"),
                identity=identity,
                repetitions=repetitions,
                input_range=spec.input_range,
                input_mask=None if spec.input_mask is None else dict(spec.input_mask),
                probe=name,
            )
        )
    if tokenizer is not None:
        files["tokenizer.json"] = tokenizer.dump().encode()
    manifest = {
        "model": plan.model,
        "precision": precision,
        "target": plan.target,
        "input": plan.input,
        "output": plan.output,
        "output_meaning": plan.output_meaning,
        "series": series,
        "washout": whole_number("washout", washout, least=0),
        "ranges": ranges,
        "loss": loss,
        "reads_last": plan.reads_last,
        "segments": tuple(graph.segment for graph in plan.graphs),
        "crossings": tuple(plan.crossings),
        "carried": tuple(plan.carried),
        "stepwise": plan.stepwise,
        "whole_sequences": plan.whole_sequences,
        "slots": tuple(slots),
        "tokenizer": "tokenizer.json" if tokenizer is not None else None,
        "golden": "golden.safetensors",
        "certificate": certificate,
        "provenance": provenance.plain(_without_paths(record)),
    }
    return write_bundle(path, manifest, files)


def built(plan: Plan, metadata: Mapping[str, str]) -> tuple[dict[str, bytes], list[Any]]:
    """The files of a plan's graphs, and sessions that run them."""
    places = plan.weights.places()
    files = {graph.file: graph.build(places, metadata) for graph in plan.graphs}
    sessions = [session_of(files[graph.file], graph.arrays, graph.file) for graph in plan.graphs]
    return files, sessions


def _metadata(plan: Plan, record: Mapping[str, Any]) -> dict[str, str]:
    """What each graph says about where it comes from, should it be taken out of its bundle."""
    return {
        "model": plan.model,
        "package": f"reservoir-hw {record['versions'].get('reservoir-hw', '')}",
        "time": str(record["time"]),
        "configuration_sha256": str(record.get("run", {}).get("configuration_sha256", "")),
        "reservoirs": " ".join(spec.identity.fingerprint for spec in plan.reservoirs),
    }


def _check_repetitions(plan: Plan, repetitions: int) -> None:
    """Raise `ConfigurationError` where states cannot be the mean of several drives of a whole sequence."""
    if repetitions > 1 and (plan.stepwise or any(crossing.state is not None for crossing in plan.crossings)):
        raise ConfigurationError(
            f"{plan.model} needs the answer to each step before the next, so no sequence can be played "
            f"{repetitions} times and averaged: train with repetitions=1 and export that"
        )


def _golden(
    plan: Plan, sessions: Sequence[Any], recorded: Values | None, washout: int, *, exact: bool
) -> dict[str, np.ndarray]:
    """Inputs and outputs of each segment, the last of a few steps behind the washout; of a quantised model those of the
    graphs themselves."""
    steps = 1 if plan.stepwise else _GOLDEN_STEPS
    if recorded is not None and not plan.carried:
        first = max(0, min(washout, recorded[plan.input.name].shape[1] - steps))
        values = {name: np.ascontiguousarray(value[:1, first : first + steps]) for name, value in recorded.items()}
    else:
        values = random_inputs(plan, (1, steps), generator(0, "golden"))
    golden = {}
    for number, comparison in enumerate(compared(plan, sessions, values)):
        given = comparison.given | (comparison.expected if exact else comparison.got)
        # Not ascontiguousarray, which gives a scalar an axis.
        golden |= {f"segment_{number}/{name}": np.asarray(value, order="C") for name, value in given.items()}
    return golden


def _without_paths(record: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance in the bundle. It has neither paths of this machine nor the command line."""
    return {
        key: value for key, value in record.items() if key not in ("command", "configuration", "configuration_sha256")
    }
