"""Inputs act within the whole declared range, and nowhere beyond it."""

from __future__ import annotations

import pytest

from reservoir_hw.core.errors import DeviceError, InputRangeError
from reservoir_hw.testing.bench import Bench, Pair
from reservoir_hw.testing.outcomes import failed, unverified
from reservoir_hw.testing.plan import Plan, drives

_STEPS = 12
# Parts of the way from the middle of the range to an end.
_MIDDLE = 0.3, 0.5
# The other drives stay within the first of these.
_END = 0.8, 1.0
_BEYOND = 0.01


def levels(plan: Plan) -> int:
    """Two pairs of constant inputs."""
    return plan.compared(*[plan.drive(_STEPS)] * 4) if plan.spec.input_range else 0


def _declared(bench: Bench) -> tuple[float, float]:
    limits = bench.spec.input_range
    if limits is None:
        unverified("input_range is not declared")
    return limits


def _levels(bench: Bench, end: float, parts: tuple[float, float]) -> Pair:
    """Responses to two constant inputs on the way to an end of the range."""
    low, high = _declared(bench)
    middle = (low + high) / 2
    first, second = (bench.level(middle + part * (end - middle), _STEPS) for part in parts)
    return bench.pair(lambda: bench.drive(first)[0], lambda: bench.drive(second)[0])


@pytest.mark.parametrize("end", ["lowest", "highest"])
@drives(levels)
def test_no_clip(bench: Bench, end: str) -> None:
    """The states follow the input up to the end of the range."""
    low, high = _declared(bench)
    at = low if end == "lowest" else high
    usual = bench.compare(_levels(bench, at, _MIDDLE))
    bench.expect_response(
        _levels(bench, at, _END),
        usual.difference,
        f"the states stop following the input between {_END[0]:.0%} and {_END[1]:.0%} of the way to {at:g}, where the "
        "declared range ends: something clips before",
    )


@drives(lambda plan: 2 * plan.drive(_STEPS) if plan.spec.input_range else 0)
def test_whole_range(bench: Bench) -> None:
    """The device takes its lowest and its highest input."""
    for at in _declared(bench):
        try:
            bench.drive(bench.level(at, _STEPS))
        except (DeviceError, InputRangeError) as error:
            failed(f"the input {at:g} lies in the declared range, and the device does not take it: {error}")


@drives(lambda plan: 2 * plan.drive(3) if plan.spec.input_range else 0)
def test_beyond(bench: Bench) -> None:
    """What lies beyond the range is refused before the device is driven, or clipped and counted."""
    low, high = _declared(bench)
    for at in (low - _BEYOND * (high - low), high + _BEYOND * (high - low)):
        u = bench.level(at, 3)
        bench.reservoir.reset(1)
        driven, clipped = bench.device_steps, bench.reservoir.counters.clipped
        try:
            bench.reservoir.run(u)
        except InputRangeError:
            if bench.reservoir.out_of_range == "clip":
                failed(f"out_of_range is clip, but the input {at:g} was refused")
            if bench.device_steps != driven:
                failed(f"the input {at:g} was refused, but after the device had been driven")
            continue
        if bench.reservoir.out_of_range == "error":
            failed(f"the input {at:g} lies beyond the declared range, and was accepted")
        counted = bench.reservoir.counters.clipped - clipped
        if counted != u.size:
            failed(f"{u.size} inputs of {at:g} were clipped, and {counted} were counted")
