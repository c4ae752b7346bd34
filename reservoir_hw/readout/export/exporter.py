"""From a trained model to a bundle: cut, written as graphs, compared, and packed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
from reservoir_hw.readout.edge.manifest import WEIGHTS, Certificate, Certified, Loss, Manifest, Ranges, Slot, Value
from reservoir_hw.readout.edge.sessions import import_onnxruntime, session_of
from reservoir_hw.readout.edge.verification import Deviation, deviation_of, limit_of, record_probe, spread_of
from reservoir_hw.readout.export.graph import EDGE, Plan, Precision, Values
from reservoir_hw.readout.export.segments import plan_of

Metrics = Mapping[str, Mapping[str, float]]

# What a manifest and a plan say in the same words.
_OF_THE_PLAN = (
    "model", "target", "input", "output", "output_meaning", "reads_last", "stepwise", "whole_sequences",
)  # fmt: skip

# Of the provenance: paths, and the command line.
_OF_THIS_MACHINE = ("command", "configuration", "configuration_sha256")

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
    if repetitions > 1 and (plan.stepwise or any(crossing.state is not None for crossing in plan.crossings)):
        raise ConfigurationError(
            f"{plan.model} needs the answer to each step before the next, so no sequence can be played "
            f"{repetitions} times and averaged: train with repetitions=1 and export that"
        )
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
        **{name: getattr(plan, name) for name in _OF_THE_PLAN},
        "precision": precision,
        "series": series,
        "washout": whole_number("washout", washout, least=0),
        "ranges": ranges,
        "loss": loss,
        "segments": tuple(graph.segment for graph in plan.graphs),
        "crossings": tuple(plan.crossings),
        "carried": tuple(plan.carried),
        "slots": tuple(slots),
        "tokenizer": "tokenizer.json" if tokenizer is not None else None,
        "golden": "golden.safetensors",
        "certificate": certificate,
        "provenance": provenance.plain({key: fact for key, fact in record.items() if key not in _OF_THIS_MACHINE}),
    }
    return write_bundle(path, manifest, files)


def built(plan: Plan, metadata: Mapping[str, str]) -> tuple[dict[str, bytes], list[Any]]:
    """The files of a plan's graphs, and sessions that run them."""
    places = plan.weights.places()
    files = {graph.file: graph.build(places, metadata) for graph in plan.graphs}
    return files, [session_of(files[graph.file], graph.arrays, graph.file) for graph in plan.graphs]


def _metadata(plan: Plan, record: Mapping[str, Any]) -> dict[str, str]:
    """What each graph says about where it comes from, should it be taken out of its bundle."""
    return {
        "model": plan.model,
        "package": f"reservoir-hw {record['versions'].get('reservoir-hw', '')}",
        "time": str(record["time"]),
        "configuration_sha256": str(record.get("run", {}).get("configuration_sha256", "")),
        "reservoirs": " ".join(spec.identity.fingerprint for spec in plan.reservoirs),
    }


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


# ---- The comparison of exported graphs with the model they were made of.


SHAPES = ((1, 1), (1, 17), (3, 5))
"""Sequences and steps of the random inputs."""


def certify(
    plan: Plan,
    sessions: Sequence[Any],
    *,
    recorded: Values | None = None,
    spread: np.ndarray | None = None,
    washout: int = 0,
    bounded: bool = True,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[Certificate, Values]:
    """Run every graph and its reference on random and on recorded inputs; also the spreads of all that graphs give.

    `sessions` are those of the plan's graphs. `recorded` holds the model's input and all states that devices
    answered, (batch, time, ...), from rest on. `spread` (outputs,) is that of the model's outputs; None: that of what
    was recorded behind the washout, else that on random inputs. Raises `ConfigurationError` where a graph is further
    from its reference than its limit, unless it is quantised (`bounded` False).
    """
    random = generator(0, "parity")
    shapes = SHAPES if not plan.stepwise else tuple((batch, 1) for batch, _ in SHAPES)
    trials = [compared(plan, sessions, random_inputs(plan, shape, random)) for shape in shapes]
    followed = [] if recorded is None else list(_followed(plan, sessions, recorded))
    batch, steps = (0, 0) if recorded is None else recorded[plan.input.name].shape[:2]
    for comparison in chain(trials, followed):
        for number, found in enumerate(comparison):
            _check_finite(plan, number, found)
    spreads = _spreads(plan, followed or trials, washout if washout < steps else 0)
    if spread is not None:
        spreads[plan.output.name] = spread
    certified = []
    for number in range(len(plan.graphs)):
        tried = [comparison[number] for comparison in chain(trials, followed)]
        if bounded:
            for found in tried:
                _check_counts(plan, number, found)
        deviations = (one for found in tried for one in found.deviations(plan, number, spreads))
        one = max(deviations, key=lambda deviation: deviation.share)
        if bounded and one.share > 1:
            raise ConfigurationError(
                f"segment {number} of {plan.model} differs from the model by {one.error:.2g} of what {one.value} "
                f"{one.channel} moves by (a standard deviation of {one.spread:.2g}), more than {one.limit:.2g}: an "
                "emit that computes something else than forward, or weights too large for single precision (an "
                "ill-conditioned ridge regression needs a larger alpha); nothing was written"
            )
        facts: dict[str, Any] = one._asdict() | ({} if bounded else {"limit": None})
        certified.append(
            Certified(
                segment=number,
                **facts,
                random_shapes=shapes,
                recorded_steps=batch * steps,
            )
        )
    torch = sys.modules.get("torch")
    certificate = Certificate(
        reference=f"numpy {np.__version__}" if torch is None else f"torch {torch.__version__}",
        runtime=f"onnxruntime {import_onnxruntime().__version__}",
        segments=tuple(certified),
        metrics={name: dict(pair) for name, pair in (metrics or {}).items()},
    )
    return certificate, {f"spread/{name}": array for name, array in spreads.items()}


def _spreads(plan: Plan, comparisons: Sequence[Sequence[Comparison]], washout: int) -> Values:
    """By name of what the graphs give: each output of the model for itself, of other values one for all."""
    found: Values = {}
    for number, graph in enumerate(plan.graphs):
        for value in graph.gives:
            if value.scalar:
                continue
            rows = [one[number].expected[value.name] for one in comparisons]
            timed = rows[0].ndim == 3
            # A model that steps is compared by steps: each is a comparison.
            if len(comparisons) > 1 and timed and all(row.shape[1] == 1 for row in rows):
                rows = rows[washout:]
            elif timed:
                rows = [row[:, washout:] for row in rows]
            values = np.concatenate([row.reshape(-1, row.shape[-1]) for row in rows])
            if value.name == plan.output.name:
                found[value.name] = spread_of(values, logits=plan.output_meaning == "logits")
            elif timed:
                found[value.name] = np.sqrt(np.square(spread_of(values)).mean(keepdims=True))
            else:
                # A state that is carried: of one series there is one alone, whose nodes differ.
                found[value.name] = spread_of(values.reshape(-1, 1))
    return found


@dataclass(frozen=True)
class Comparison:
    """A segment: what it was given, what the model gives, and what the graph gives.

    `edges` says by how much a count of clipped values may differ. `recorded`: the inputs are of the task.
    """

    given: Values
    expected: Values
    got: Values
    edges: dict[str, int]
    recorded: bool = False

    def deviations(self, plan: Plan, number: int, spreads: Values) -> list[Deviation]:
        """Of each value; counts of clipped values are compared by `_check_counts`.

        Random inputs may drive a model far out of what it was trained on: there the size of the outputs counts, too.
        """
        found = []
        for value in plan.graphs[number].gives:
            if value.scalar:
                continue
            got, expected = self.got[value.name], self.expected[value.name]
            size = np.sqrt(np.square(expected.reshape(-1, expected.shape[-1]).astype(np.float64)).mean(axis=0))
            spread = spreads[value.name] if self.recorded else np.maximum(spreads[value.name], size)
            found.append(deviation_of(value.name, got, expected, spread, limit_of(value.dtype, target=plan.target)))
        return found


def compared(plan: Plan, sessions: Sequence[Any], values: Values, *, recorded: bool = False) -> list[Comparison]:
    """Run all segments, each fed with what the model itself computes."""
    known = dict(values)
    found = []
    for graph, session, reference in zip(plan.graphs, sessions, plan.references, strict=True):
        given = {value.name: known[value.name] for value in graph.reads}
        # Infinity is an error of its own, found by `certify`.
        with np.errstate(over="ignore", invalid="ignore"):
            computed = reference(given)
            # A model in double is compared with what its graphs give.
            expected = {value.name: np.asarray(computed[value.name], value.dtype) for value in graph.gives}
        names = [value.name for value in graph.gives]
        got = dict(zip(names, session.run(names, given), strict=True))
        for name in names:
            if got[name].shape != expected[name].shape:
                raise ConfigurationError(
                    f"{name} of {plan.model} is {got[name].shape} in the graph and {expected[name].shape} in the model"
                )
        edges = {value.name: int(computed.get(f"{value.name}{EDGE}", 0)) for value in graph.gives if value.scalar}
        found.append(Comparison(given, expected, got, edges, recorded))
        known |= expected
    return found


def _check_finite(plan: Plan, number: int, found: Comparison) -> None:
    """Raise `ConfigurationError` for infinity and NaN, which no bound holds."""
    for who, values in (("the model itself", found.expected), ("the graph", found.got)):
        for name, array in values.items():
            if not np.isfinite(array).all():
                raise ConfigurationError(
                    f"segment {number} of {plan.model}: {who} gives infinity or NaN ({name}): its weights are too "
                    "large, or the states that it reads are not finite; train it again on scaled, finite states; "
                    "nothing was written"
                )


def _check_counts(plan: Plan, number: int, found: Comparison) -> None:
    """Raise `ConfigurationError` for a map that clips more or fewer values than that of the model.

    A value within rounding of a limit may be clipped by one and not by the other; any further one may not.
    """
    for name, edge in found.edges.items():
        got, expected = int(found.got[name]), int(found.expected[name])
        if abs(got - expected) > edge:
            raise ConfigurationError(
                f"segment {number} of {plan.model} clips {got} values into the range of its device and the model "
                f"{expected} ({name}), where rounding explains {edge}: its input map is not the model's; export again "
                "without changing the model meanwhile, or with another onnxruntime; nothing was written"
            )


def _followed(plan: Plan, sessions: Sequence[Any], recorded: Values) -> Iterator[list[Comparison]]:
    """Recorded inputs and states, from rest on; a model that steps is compared step by step."""
    batch, steps = recorded[plan.input.name].shape[:2]
    known: Values = {one.gives: np.zeros((batch, *one.shape), one.dtype) for one in plan.carried}
    for part in [slice(step, step + 1) for step in range(steps)] if plan.stepwise else [slice(None)]:
        carried = {one.reads: known[one.gives].astype(one.dtype) for one in plan.carried}
        values = {**carried, **{name: recorded[name][:, part] for name in recorded}}
        comparisons = compared(plan, sessions, values, recorded=True)
        known = {name: value for comparison in comparisons for name, value in comparison.expected.items()}
        yield comparisons


def random_inputs(plan: Plan, shape: tuple[int, int], random: np.random.Generator) -> Values:
    """The model's input, the states of every crossing, and what is carried.

    States are drawn from the range that the device declares; where it declares none, with mean and deviation of those
    that a linear readout was trained on; where that is not known either, from the standard normal distribution.
    """

    def draw(value: Value, axes: tuple[int, ...], limits: tuple[float, float] | None = None) -> np.ndarray:
        whole = (*axes, *value.shape)
        if value.dtype == "int64":
            return random.integers(0, plan.vocabulary or 2, whole)
        numbers = random.standard_normal(whole) if limits is None else random.uniform(*limits, whole)
        return numbers.astype(value.dtype)

    values = {plan.input.name: draw(plan.input, shape)}
    for crossing in plan.crossings:
        spec = plan.reservoirs[crossing.slot]
        value = Value(name=crossing.states, shape=(spec.nodes,), dtype=spec.dtype)
        states = draw(value, shape, spec.state_range)
        if plan.state_scale is not None:
            centre, spread = plan.state_scale.centre[: spec.nodes], plan.state_scale.spread[: spec.nodes]
            states = (centre + spread * states).astype(value.dtype)
        values[crossing.states] = states
    for carried in plan.carried:
        values[carried.reads] = draw(carried.read, shape[:1])
    return values
