"""Channels of a task that meet another number of inputs, or another range: the mask that nobody asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reservoir_hw.core.channels import Channels, check_within, meeting
from reservoir_hw.core.reservoir_config import reservoir_config
from reservoir_hw.core.spec import Identity, ReservoirSpec

ESN: dict[str, Any] = {"kind": "esn", "nodes": 12, "inputs": 2}
LAB: dict[str, Any] = {
    "kind": "python", "call": "numpy:tanh", "nodes": 2, "inputs": 2, "simulated": False, "continuity": "held",
    "reset": {"kind": "none", "reason": "no memory"},
}  # fmt: skip

ENDS = st.tuples(st.floats(-5, 5), st.floats(0.01, 8)).map(lambda ends: (ends[0], ends[0] + ends[1]))
KINDS = st.sampled_from(["one_hot", "box", "ball", "box and ball"])


def spec(inputs: int, limits: tuple[float, float] | None, *, simulated: bool = False) -> ReservoirSpec:
    device = Identity(vendor="tests", model="a device", simulated=simulated)
    return ReservoirSpec(inputs=inputs, nodes=1, input_range=limits, identity=device)


def declared(kind: str, count: int, ends: tuple[float, float], length: float) -> Channels:
    if kind == "ball":
        return Channels(count, length=length)
    return Channels(count, ends, one_hot=kind == "one_hot", length=length if kind == "box and ball" else None)


def drawn(channels: Channels, matrix: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Inputs (time, channels) that are within what is declared; among them those that go furthest."""
    low, high = channels.range or (-np.inf, np.inf)
    if channels.one_hot:
        return np.where(np.eye(channels.count, dtype=bool), high, low)
    inputs = random.normal(size=(200, channels.count)) * 3
    if channels.range is not None:
        corners = np.where(np.concatenate([matrix, -matrix]) > 0, high, low)
        inputs = np.concatenate([random.uniform(low, high, inputs.shape), corners])
    if channels.length is not None:
        directions = np.concatenate([matrix, -matrix])
        inputs = inputs if channels.range is not None else np.concatenate([inputs, 1e6 * directions])
        longest = np.maximum(np.linalg.norm(inputs, axis=1, keepdims=True), 1e-12)
        inputs = inputs * np.minimum(1.0, channels.length / longest)
        # Shortened, some leave the box at its other side.
        inputs = inputs[((inputs >= low) & (inputs <= high)).all(axis=1)]
    return inputs


@settings(deadline=None, max_examples=60)
@given(KINDS, st.integers(1, 40), st.integers(1, 6), ENDS, st.floats(0.1, 9), ENDS, st.integers(0, 10_000))
def test_nothing_leaves_the_range_of_the_device(
    kind: str, count: int, inputs: int, ends: tuple[float, float], length: float, limits: tuple[float, float], seed: int
) -> None:
    channels = declared(kind, count, ends, length)
    assume(channels.count != inputs)
    config = meeting(channels, spec(inputs, limits), clips=False, seed=seed)
    assert config is not None
    assert (config.kind, config.seed) == ("uniform", seed)
    mask = config.build(inputs, count)
    reached = mask.apply(drawn(channels, mask.matrix, np.random.default_rng(seed)))
    if not len(reached):
        return
    if channels.one_hot:
        # At rest all channels are 0.
        reached = np.concatenate([reached, mask.bias[None]])
    rounding = 1e-9 * (1 + abs(limits[0]) + abs(limits[1]))
    assert limits[0] - rounding <= reached.min()
    assert reached.max() <= limits[1] + rounding
    if kind != "box and ball":
        # The inputs that go furthest use the range: a device is not driven with a whisper.
        assert np.ptp(reached) > 0.6 * (limits[1] - limits[0])
    check_within(mask, channels, limits)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), ENDS, ENDS)
def test_as_many_channels_as_inputs_are_scaled_only_where_they_would_be_refused(
    count: int, ends: tuple[float, float], limits: tuple[float, float]
) -> None:
    channels, device = Channels(count, ends), spec(count, limits)
    mask = meeting(channels, device, clips=False, seed=3)
    assert meeting(channels, device, clips=True, seed=3) is None
    if limits[0] <= ends[0] and ends[1] <= limits[1]:
        assert mask is None
        return
    assert mask is not None
    assert mask.kind == "one_to_one"
    reached = mask.build(count, count).apply(np.array([[ends[0]] * count, [ends[1]] * count]))
    assert limits[0] <= reached.min() < reached.max() <= limits[1]


def test_where_nobody_says_how_large_inputs_are_a_device_that_clips_takes_them() -> None:
    device = reservoir_config({**LAB, "input_range": [0, 4], "out_of_range": "clip"})
    mask = device.for_inputs(Channels(30)).planned_mask()
    assert mask is not None
    u = np.random.default_rng(1).normal(size=(4000, 30))
    driven = mask.build(2, 30).apply(u)
    assert np.mean((driven < 0) | (driven > 4)) < 0.02
    assert driven.std() > 0.4


def test_a_simulation_without_a_range_gets_inputs_of_the_size_of_one_channel() -> None:
    """Whatever the number of channels, so that `input_scaling` keeps its meaning."""
    u = np.random.default_rng(1).normal(size=(2000, 1, 300))
    for count in (3, 30, 300):
        mask = reservoir_config(ESN).for_inputs(Channels(count)).planned_mask()
        assert mask is not None
        assert 0.5 < mask.build(2, count).apply(u[..., :count]).std() < 2
    hot = reservoir_config(ESN).for_inputs(Channels(24, (0.0, 1.0), one_hot=True)).planned_mask()
    assert hot is not None
    assert hot.scaling == 1.0
