"""Inputs act within the whole declared range, and nowhere beyond it."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from reservoir_hw.core.errors import DeviceError, InputRangeError
from reservoir_hw.measures.comparison import spread_of
from reservoir_hw.testing.bench import Bench, Pair
from reservoir_hw.testing.plan import Plan, drives, failed, inconclusive, unverified

_STEPS = 8
# Parts of the way from the middle of the range to an end.
_LEVELS = 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.975, 1.0
_FEWEST_LEVELS = 3
# A response that should be so many times larger than the smallest that is seen, and is not seen, is none.
_CLEARLY = 3
_BEYOND = 0.01


def _levels(bits: int | None) -> list[float]:
    """Those that a converter of the inputs tells apart, the last one at the end of the range."""
    apart = 4 / 2**bits if bits else 0.0
    kept = [_LEVELS[-1]]
    for level in _LEVELS[-2::-1]:
        if kept[-1] - level >= apart:
            kept.append(level)
    return kept[::-1]


def levels(plan: Plan) -> int:
    """Constant inputs, for each of the inputs that are looked at."""
    driven = plan.compared(plan.drive(_STEPS)) * len(_levels(plan.spec.input_bits)) * len(plan.inputs)
    return driven if plan.limited else 0


def _declared(bench: Bench) -> tuple[float, float]:
    limits = bench.reservoir.known_range
    if limits is None:
        unverified("input_range is not declared")
    return limits


@pytest.mark.parametrize("end", ["lowest", "highest"])
@drives(levels)
def test_no_clip(bench: Bench, end: str) -> None:
    """The states follow each input up to the end of the range."""
    limits, parts = _declared(bench), _levels(bench.spec.input_bits)
    if len(parts) < _FEWEST_LEVELS:
        unverified(f"inputs of {bench.spec.input_bits} bits have too few levels")
    at, looked_at = limits[end == "highest"], bench.plan.inputs
    for number in looked_at:
        _expect_following(bench, _responses(bench, number, at, parts), parts, f"input {number} on its way to {at:g}")
    if len(looked_at) < bench.spec.inputs:
        bench.statement.text += f" ({len(looked_at)} of {bench.spec.inputs} inputs were looked at)"


def _responses(bench: Bench, number: int, end: float, parts: list[float]) -> np.ndarray:
    """States (levels, repeats, steps, nodes) while one input takes its levels, and all others keep to the middle."""
    middle = sum(_declared(bench)) / 2
    inputs = np.full((len(parts), bench.spec.inputs), middle)
    inputs[:, number] += np.array(parts) * (end - middle)
    taken = []
    for repeat in range(bench.repeats):
        upwards = 1 if repeat % 2 == 0 else -1
        taken.append([bench.drive(bench.level(level, _STEPS))[0] for level in inputs[::upwards]][::upwards])
    return np.array(taken).swapaxes(0, 1)


def _expect_following(bench: Bench, states: np.ndarray, parts: list[float], what: str) -> None:
    """Each level gives other states than the one before, or differences have become too small by and by."""
    spread = spread_of(np.concatenate(states, axis=1))
    found = [bench.compare(Pair(*pair, spread)) for pair in pairwise(states)]
    still = max((index for index, one in enumerate(found) if one.differs), default=None)
    if still is None:
        inconclusive(f"{what}: no response was seen: {found[0]}")
    reached = parts[still + 1]
    # States may turn around at a level, and then be the same on both its sides.
    if still >= len(found) - 2:
        bench.statement.text = f"states follow the inputs up to {reached:.1%} of the way to the end"
        return
    where = f"{what}: the states do not follow beyond {reached:.1%} of the way"
    # What is to come, if the answer goes on to fade as it did.
    slopes = [one.difference / width for one, width in zip(found, np.diff(parts), strict=True)]
    fading = min(1.0, slopes[still] / slopes[still - 1]) if still and slopes[still - 1] else 1.0
    due = fading * slopes[still] * (1 - reached)
    if due >= _CLEARLY * max(found[-1].smallest, _level(states) / spread):
        failed(f"{where}, and they did before, by {due:.2g} standard deviations for as much: something clips")
    whole = bench.compare(Pair(states[parts.index(max(part for part in parts if part <= 0.8))], states[-1], spread))
    if not whole.differs:
        inconclusive(f"{where}, or so little that it was not seen: {whole}")
    bench.statement.text = f"beyond {reached:.1%} of the way the states follow little: {whole}"


def _level(states: np.ndarray) -> float:
    """The smallest difference between two states of a device that does not scatter: a converter has levels."""
    levels = np.unique(states)
    return float(np.diff(levels).min()) if states.shape[1] == 1 and len(levels) > 1 else 0.0


@drives(lambda plan: 2 * plan.drive(_STEPS) if plan.limited else 0)
def test_whole_range(bench: Bench) -> None:
    """The device takes its lowest and its highest input."""
    for at in _declared(bench):
        try:
            bench.drive(bench.level(at, _STEPS))
        except (DeviceError, InputRangeError) as error:
            failed(f"the input {at:g} lies in the declared range, and the device does not take it: {error}")


@drives(lambda plan: 2 * plan.drive(3) if plan.limited else 0)
def test_beyond(bench: Bench) -> None:
    """What lies beyond the range is refused before the device is driven, or clipped and counted."""
    _declared(bench)
    for u in bench.beyond(_BEYOND, 3):
        at, expected = f"{np.abs(u).max() * np.sign(u.flat[0]):g}", bench.outside(u)
        bench.reservoir.reset(1)
        clipped = bench.reservoir.counters.clipped
        if bench.refused(partial(bench.reservoir.run, u), InputRangeError, f"the input {at}"):
            if bench.reservoir.out_of_range == "clip":
                failed(f"out_of_range is clip, but the input {at} was refused")
            continue
        if bench.reservoir.out_of_range == "error":
            failed(f"the input {at} lies beyond the declared range, and was accepted")
        counted = bench.reservoir.counters.clipped - clipped
        if counted != expected:
            failed(f"{expected} inputs of {at} were clipped, and {counted} were counted")
