"""The comparison of exported graphs with the model they were made of."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.readout.edge.manifest import Certificate, Certified, Value
from reservoir_hw.readout.edge.sessions import import_onnxruntime
from reservoir_hw.readout.export.plan import BOUND, EDGE, Plan, Values

SHAPES = ((1, 1), (1, 17), (3, 5))
"""Sequences and steps of the random inputs."""


def certify(
    plan: Plan,
    sessions: Sequence[Any],
    *,
    recorded: Values | None = None,
    bounded: bool = True,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
) -> Certificate:
    """Run every graph and its reference on random and on recorded inputs.

    `sessions` are those of the plan's graphs. `recorded` holds the model's input and all states that devices
    answered, (batch, time, ...), from rest on. Raises `ConfigurationError` where a graph is further from its
    reference than the bound, unless it is quantised (`bounded` False).
    """
    random = generator(0, "parity")
    shapes = SHAPES if not plan.stepwise else tuple((batch, 1) for batch, _ in SHAPES)
    trials = [random_inputs(plan, shape, random) for shape in shapes]
    comparisons = (compared(plan, sessions, values) for values in trials)
    if recorded is not None:
        comparisons = chain(comparisons, _followed(plan, sessions, recorded))
    worst = [(0.0, 0.0)] * len(plan.graphs)
    for comparison in comparisons:
        for number, found in enumerate(comparison):
            _check_finite(plan, number, found)
            if bounded:
                _check_counts(plan, number, found)
            worst[number] = max(worst[number], *found.errors(plan.graphs[number].gives), key=_relative)
    certified = []
    for number, (error, output) in enumerate(worst):
        bound = BOUND * max(1.0, output) if bounded else None
        if bound is not None and error > bound:
            raise ConfigurationError(
                f"segment {number} of {plan.model} differs from the model by {error:.2g}, more than {bound:.2g}: an "
                "emit that computes something else than forward, or weights too large for single precision (an "
                "ill-conditioned ridge regression needs a larger alpha); nothing was written"
            )
        certified.append(
            Certified(
                segment=number,
                largest_error=float(error),
                largest_output=float(output),
                bound=bound,
                random_shapes=shapes,
                recorded_steps=0 if recorded is None else math.prod(recorded[plan.input.name].shape[:2]),
            )
        )
    return Certificate(
        reference=_reference(),
        runtime=f"onnxruntime {import_onnxruntime().__version__}",
        segments=tuple(certified),
        metrics={name: dict(pair) for name, pair in (metrics or {}).items()},
    )


@dataclass(frozen=True)
class Comparison:
    """A segment: what it was given, what the model gives, and what the graph gives.

    `edges` says by how much a count of clipped values may differ.
    """

    given: Values
    expected: Values
    got: Values
    edges: dict[str, int]

    def errors(self, values: Sequence[Value]) -> list[tuple[float, float]]:
        """Of each value the largest error and the largest number."""
        # Counts of clipped values are compared by `_check_counts`.
        pairs = [(self.got[one.name], self.expected[one.name]) for one in values if not one.scalar]
        return [(_largest(got.astype(np.float64) - expected), _largest(expected)) for got, expected in pairs]


def compared(plan: Plan, sessions: Sequence[Any], values: Values) -> list[Comparison]:
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
        found.append(Comparison(given, expected, got, edges))
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
        comparisons = compared(plan, sessions, {**carried, **{name: recorded[name][:, part] for name in recorded}})
        known = {name: value for comparison in comparisons for name, value in comparison.expected.items()}
        yield comparisons


def random_inputs(plan: Plan, shape: tuple[int, int], random: np.random.Generator) -> Values:
    """The model's input, the states of every crossing, and what is carried.

    States are drawn from the range that the device declares; where it declares none, with mean and deviation of those
    that a linear readout was trained on; where that is not known either, from the standard normal distribution.
    """
    values = {plan.input.name: _random(plan.input, shape, random, plan, None)}
    for crossing in plan.crossings:
        spec = plan.reservoirs[crossing.slot]
        value = Value(name=crossing.states, shape=(spec.nodes,), dtype=spec.dtype)
        states = _random(value, shape, random, plan, spec.state_range)
        if plan.state_scale is not None:
            centre, spread = plan.state_scale.centre[: spec.nodes], plan.state_scale.spread[: spec.nodes]
            states = (centre + spread * states).astype(value.dtype)
        values[crossing.states] = states
    for carried in plan.carried:
        value = Value(name=carried.reads, shape=carried.shape, dtype=carried.dtype)
        values[carried.reads] = _random(value, shape[:1], random, plan, None)
    return values


def _random(
    value: Value,
    axes: tuple[int, ...],
    random: np.random.Generator,
    plan: Plan,
    limits: tuple[float, float] | None,
) -> np.ndarray:
    shape = (*axes, *value.shape)
    if value.dtype == "int64":
        return random.integers(0, plan.vocabulary or 2, shape)
    numbers = random.standard_normal(shape) if limits is None else random.uniform(*limits, shape)
    return numbers.astype(value.dtype)


def _relative(error_and_output: tuple[float, float]) -> tuple[float, float]:
    """An error in units of the bound; of equal ones that of the largest output counts."""
    error, output = error_and_output
    return error / max(1.0, output), output


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0))


def _reference() -> str:
    torch = sys.modules.get("torch")
    return f"numpy {np.__version__}" if torch is None else f"torch {torch.__version__}"
