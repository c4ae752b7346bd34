from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toys import SnapshotToy, Toy

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotOpen, ShapeError, StateLost
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer

ESN: dict[str, Any] = {
    "kind": "esn", "inputs": 3, "nodes": 7, "leak_rate": [0.3, 0.9], "bias_scaling": 0.2, "dtype": "float64", "seed": 4,
}  # fmt: skip
TWIN = {**ESN, "gradients": True}


def drive(batch: int = 2, time: int = 6, width: int = 3, seed: int = 0) -> Tensor:
    numbers = np.random.default_rng(seed).uniform(-1, 1, (batch, time, width))
    return torch.from_numpy(numbers).requires_grad_()


def pull(states: Tensor, u: Tensor) -> np.ndarray:
    """The gradient at the inputs of a fixed weighting of the states."""
    weighting = torch.from_numpy(np.random.default_rng(9).standard_normal(states.shape)).to(states.dtype)
    return torch.autograd.grad((states * weighting).sum(), u)[0].numpy()


def physics_aware_gradient(twin: Any, u: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Backpropagation through the twin's equation, its Jacobian at the measured states, as it is written."""
    W, weights = twin.weights.recurrent(), twin.weights
    weighting = np.random.default_rng(9).standard_normal(measured.shape)
    before = np.concatenate([np.zeros_like(measured[:, :1]), measured[:, :-1]], axis=1)
    slope = 1 - np.tanh(before @ W.T + u @ weights.W_in.T + weights.bias) ** 2
    carried = np.zeros_like(measured[:, 0])
    gradient = np.empty_like(u)
    for t in reversed(range(u.shape[1])):
        carried = carried + weighting[:, t]
        through = carried * weights.leak * slope[:, t]
        gradient[:, t] = through @ weights.W_in
        carried = carried * (1 - weights.leak) + through @ W
    return gradient


def test_stop_gives_the_states_and_no_gradient() -> None:
    u = drive()
    with open_reservoir(ESN) as device, open_reservoir(TWIN) as differentiable:
        device.reset(2)
        expected = device.run(u.detach())
        for reservoir in (device, differentiable):
            states = ReservoirLayer(reservoir)(u)
            assert not states.requires_grad
            np.testing.assert_allclose(states.numpy(), np.asarray(expected), rtol=0, atol=1e-12)


def test_through_equals_finite_differences_of_the_whole_map() -> None:
    u = drive()
    with open_reservoir(TWIN) as simulation:
        layer = ReservoirLayer(simulation, gradient="through", scale=1.3, limit=0.9)
        assert layer(u).requires_grad
        assert layer.saturations > 0
        assert torch.autograd.gradcheck(layer, (u,))


def test_twin_gives_the_states_of_the_device_and_the_gradient_at_the_measured_states() -> None:
    u = drive()
    wrong = {**TWIN, "spectral_radius": 0.7, "input_scaling": 1.2}
    with open_reservoir(ESN) as device, open_reservoir(wrong) as twin:
        device.reset(2)
        measured = np.asarray(device.run(u.detach().numpy()))
        states = ReservoirLayer(device, gradient="twin", twin=twin)(u)
        np.testing.assert_array_equal(states.detach().numpy(), measured)
        expected = physics_aware_gradient(twin, u.detach().numpy(), measured)
        np.testing.assert_allclose(pull(states, u), expected, rtol=0, atol=1e-12)
        own = ReservoirLayer(twin, gradient="through")(u)
        assert np.abs(pull(own, u) - expected).max() > 0.01


def test_the_measured_states_carry_on_from_call_to_call() -> None:
    u = drive()
    with open_reservoir(ESN) as device, open_reservoir({**TWIN, "spectral_radius": 0.7}) as twin:
        layer = ReservoirLayer(device, gradient="twin", twin=twin)
        layer.begin(2)
        first = layer.advance(u[:, :4]).detach().numpy()
        pulled = pull(layer.advance(u[:, 4:]), u)[:, 4:]
        measured = layer(u)[:, 4:].detach().numpy()
        W, weights = twin.weights.recurrent(), twin.weights  # type: ignore[attr-defined]
        # The last step's gradient depends on the state before it, which the first call measured or the second.
        before = np.concatenate([first[:, -1:], measured[:, :1]], axis=1)
        inputs = u.detach().numpy()[:, 4:]
        slope = 1 - np.tanh(before @ W.T + inputs @ weights.W_in.T + weights.bias) ** 2
        weighting = np.random.default_rng(9).standard_normal(measured.shape)
        last = weighting[:, 1] * weights.leak * slope[:, 1]
        carried = weighting[:, 0] + weighting[:, 1] * (1 - weights.leak) + last @ W
        np.testing.assert_allclose(pulled[:, 1], last @ weights.W_in, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            pulled[:, 0], (carried * weights.leak * slope[:, 0]) @ weights.W_in, rtol=0, atol=1e-12
        )


def test_a_twin_that_cannot_be_set_is_differentiated_along_its_own_run() -> None:
    u = drive()
    noisy = {**TWIN, "nonidealities": {"loop": {"noise": 0.01}}}
    with open_reservoir(ESN) as device, open_reservoir(noisy) as twin, open_reservoir(noisy) as same:
        assert not twin.spec.settable
        layer = ReservoirLayer(device, gradient="twin", twin=twin)
        states = layer(u)
        np.testing.assert_array_equal(states.detach().numpy(), ReservoirLayer(device)(u).numpy())
        np.testing.assert_array_equal(pull(states, u), pull(ReservoirLayer(same, gradient="through")(u), u))
        layer.begin(2)
        with torch.no_grad():
            layer.advance(u[:, :3])
        with pytest.raises(ConfigurationError, match="3 steps before"):
            layer.advance(u[:, 3:])


def test_the_twin_is_driven_only_for_a_gradient() -> None:
    u = drive()
    with open_reservoir(ESN) as device, open_reservoir(TWIN) as twin:
        layer = ReservoirLayer(device, gradient="twin", twin=twin)
        with torch.no_grad():
            layer(u)
        layer(u.detach())
        assert twin.counters.steps == 0
        layer(u)
        # One step from rest for two sequences; the others are transitions, and no run is repeated.
        assert twin.counters.steps == 2
        assert device.counters.steps == 3 * 2 * 6


def test_the_input_map_clips_and_counts() -> None:
    u = drive(batch=1, time=50)
    with open_reservoir(TWIN) as device:
        layer = ReservoirLayer(device, gradient="through", scale=2.0, offset=0.1, limit=0.8)
        mapped = layer.map_inputs(u)
        by_hand = 2 * u.detach().numpy() + 0.1
        np.testing.assert_array_equal(mapped.detach().numpy(), by_hand.clip(0.1 - 0.8, 0.1 + 0.8))
        outside = (by_hand < 0.1 - 0.8) | (by_hand > 0.1 + 0.8)
        assert 0 < layer.saturations == outside.sum() < outside.size
        gradient = torch.autograd.grad(mapped.sum(), u)[0].numpy()
        np.testing.assert_array_equal(gradient, np.where(outside, 0.0, 2.0))
        layer(u)
        assert layer.saturations == 2 * outside.sum()


def test_what_the_map_has_clipped_is_within_the_range_of_the_device() -> None:
    """0.1 - (0.1 + 0.05) is below -0.05 in double precision."""
    dac = {**ESN, "dtype": "float64", "nonidealities": {"drive": {"bits": 8, "range": [-0.05, 2.1]}}}
    with open_reservoir(dac) as device:
        layer = ReservoirLayer(device, offset=0.1)
        layer(torch.full((1, 2, 3), -1e4, dtype=torch.float64))
        assert layer.saturations == 6
        assert device.counters.clipped == 0


def test_the_limit_comes_from_the_device_unless_it_is_given() -> None:
    dac = {**ESN, "nonidealities": {"drive": {"bits": 8, "range": [-0.5, 0.4]}}}
    with open_reservoir(ESN) as free, open_reservoir(dac) as bounded:
        assert ReservoirLayer(free).limit is None
        assert ReservoirLayer(bounded).limit == pytest.approx(0.4)
        assert ReservoirLayer(bounded, offset=-0.1).limit == pytest.approx(0.4)
        assert ReservoirLayer(bounded, limit=0.2).limit == 0.2
        layer = ReservoirLayer(bounded, scale=3.0)
        layer(drive())
        assert layer.saturations > 0
        assert bounded.counters.clipped == 0
        with pytest.raises(ConfigurationError, match=r"limit 0\.45.*\[-0\.5, 0\.4\].*offset to -0\.05"):
            ReservoirLayer(bounded, limit=0.45)
        with pytest.raises(ConfigurationError, match="within the device's input range"):
            ReservoirLayer(bounded, offset=2.0)
        wrong: tuple[dict[str, Any], ...] = (
            {"limit": -1.0},
            {"limit": float("nan")},
            {"scale": 0.0},
            {"offset": float("inf")},
        )
        for bad in wrong:
            with pytest.raises(ConfigurationError):
                ReservoirLayer(free, **bad)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_number_that_is_none_is_one_clear_error(value: float, limit: float | None) -> None:
    u = drive().detach()
    u[1, 4, 2] = value
    with open_reservoir(ESN) as device:
        layer = ReservoirLayer(device, limit=limit)
        place = r"\(sequence, step, channel\) = \(1, 4, 2\)"
        with pytest.raises(InputRangeError, match=place + " is (nan|-?inf).*learning"):
            layer(u)
        assert device.counters.steps == 0
        layer(drive())


def test_chunks_and_steps_equal_the_whole() -> None:
    u = drive().detach()
    with open_reservoir(ESN) as device:
        layer = ReservoirLayer(device, limit=0.5)
        whole = layer(u)
        for cuts in ([1, 5], [2, 2], range(1, 6)):
            layer.begin(2)
            parts = [layer.advance(part) for part in u.tensor_split(list(cuts), 1)]
            torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=0)
        layer.begin(1)
        torch.testing.assert_close(layer.advance(u[1:]), whole[1:], rtol=0, atol=1e-14)


def test_layers_that_share_a_device_do_not_disturb_each_other() -> None:
    inputs = [drive(seed=seed).detach() for seed in range(3)]
    with open_reservoir(ESN) as device:
        first = ReservoirLayer(device)
        first(inputs[0])
        # A copy of a layer is another user of the same device.
        layers = [first, copy.deepcopy(first), ReservoirLayer(device)]
        assert all(layer.reservoir is device for layer in layers)
        whole = [layer(u) for layer, u in zip(layers, inputs, strict=True)]
        for layer in layers:
            layer.begin(2)
        for t in range(6):
            for layer, u, expected in zip(layers, inputs, whole, strict=True):
                torch.testing.assert_close(layer.advance(u[:, t : t + 1])[:, 0], expected[:, t], rtol=0, atol=0)


def test_a_shared_device_without_memory_of_them_loses_its_sequences() -> None:
    u = drive(width=2).detach()
    with Toy(not_supported={"snapshot": "a film cannot be frozen"}) as device:
        first, second = ReservoirLayer(device), ReservoirLayer(device)
        torch.testing.assert_close(first(u), second(u))
        first.begin(2)
        second.begin(2)
        first.advance(u)
        first.advance(u)
        second.advance(u)
        with pytest.raises(StateLost, match=r"used for other sequences after step 11.*a film cannot be frozen"):
            first.advance(u)
        torch.testing.assert_close(first(u), second(u))


def test_somebody_else_at_the_device_is_noticed() -> None:
    u = drive(width=2).detach()
    with SnapshotToy() as device:
        layer = ReservoirLayer(device)
        for disturb in (lambda: device.reset(2), lambda: device.run(u)):
            layer(u)
            disturb()
            with pytest.raises(StateLost, match="somebody else after step 5"):
                layer.advance(u)
        other = ReservoirLayer(device)
        layer(u)
        device.reset(2)
        other(u)
        with pytest.raises(StateLost):
            layer.advance(u)


def test_a_fault_ends_the_sequences_until_they_begin_again() -> None:
    u = drive(width=2).detach()
    with SnapshotToy(fails_at=5) as device:
        layer, other = ReservoirLayer(device), ReservoirLayer(device)
        layer.begin(2)
        layer.advance(u[:, :3])
        with pytest.raises(RuntimeError, match="toy fault"):
            layer.advance(u)
        with pytest.raises(StateLost, match="the last run failed"):
            layer.advance(u[:, :1])
        other(u[:, :2])
        with pytest.raises(StateLost, match="a fault came before"):
            layer.advance(u[:, :1])
        layer(u[:, :4])


def test_numbers_come_back_as_they_went_in() -> None:
    u = drive().detach()
    single = {**ESN, "dtype": "float32"}
    with open_reservoir(single) as device, open_reservoir({**TWIN, "dtype": "float32"}) as twin:
        layer = ReservoirLayer(device, gradient="twin", twin=twin)
        assert layer(u).dtype == torch.float64
        assert layer(u.bfloat16()).dtype == torch.bfloat16
        assert layer((u > 0).long()).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(u.bfloat16()).dtype == torch.float32
        differentiable = u.clone().requires_grad_()
        layer(differentiable).sum().backward()
        assert differentiable.grad is not None
        assert differentiable.grad.dtype == torch.float64


def test_what_does_not_fit_is_refused() -> None:
    with open_reservoir(ESN) as device, open_reservoir(TWIN) as twin, open_reservoir({**TWIN, "nodes": 8}) as larger:
        refused: tuple[tuple[dict[str, Any], str], ...] = (
            ({"gradient": "straight"}, "one of stop, through, twin"),
            ({"gradient": "through"}, "no gradient passes through esn"),
            ({"gradient": "twin"}, "needs a twin"),
            ({"twin": twin}, "does not use a twin"),
            ({"gradient": "twin", "twin": larger}, "3 inputs and 8 nodes, the device 3 and 7"),
            ({"gradient": "twin", "twin": device}, "its own twin"),
        )
        for options, message in refused:
            with pytest.raises(ConfigurationError, match=message):
                ReservoirLayer(device, **options)
        with open_reservoir(ESN) as stiff, pytest.raises(ConfigurationError, match="no gradient passes through the tw"):
            ReservoirLayer(device, gradient="twin", twin=stiff)
        layer = ReservoirLayer(device)
        assert "3 -> 7 nodes, gradient='stop'" in repr(layer)
        assert not list(layer.parameters())
        assert not layer.state_dict()
        for wrong in (torch.zeros(2, 3), torch.zeros(1, 5, 2)):
            with pytest.raises(ShapeError, match=r"takes u \(batch, time, 3\)"):
                layer(wrong)
        layer.begin(2)
        with pytest.raises(ShapeError, match="3 sequences, but 2 were begun"):
            layer.advance(torch.zeros(3, 5, 3))
        for batch in (0, True, 1.5):
            with pytest.raises(ShapeError, match="number of sequences must be a whole number"):
                layer.begin(batch)  # type: ignore[arg-type]
    with pytest.raises(NotOpen):
        ReservoirLayer(device)


def test_an_empty_run_changes_nothing() -> None:
    u = drive()
    with open_reservoir(ESN) as device, open_reservoir(TWIN) as twin:
        layer = ReservoirLayer(device, gradient="twin", twin=twin)
        expected = layer(u)
        layer.begin(2)
        assert layer.advance(u[:, :0]).shape == (2, 0, 7)
        torch.testing.assert_close(layer.advance(u), expected, rtol=0, atol=0)
