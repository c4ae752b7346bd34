"""States that are torch tensors: learned from and answered where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reservoir_hw.backends.simulated import Esn, EsnWeights
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.networks import draw_weights
from reservoir_hw.readout import LMSReadout, RidgeReadout, RLSReadout
from reservoir_hw.tasks.narma import NarmaConfig

torch = pytest.importorskip("torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def narma() -> tuple[Any, np.ndarray, np.ndarray]:
    """States (1, 6000, 100) of a network that is driven with NARMA10, its targets and its inputs."""
    task = NarmaConfig(kind="narma", train_steps=6000, test_steps=20).build()
    weights: EsnWeights = draw_weights(100, 1, seed=0, spectral_radius=0.9, input_scaling=0.5, bias_scaling=0.1)
    with Esn(weights) as reservoir:
        reservoir.reset(1)
        return reservoir.run(task.train.inputs), task.train.targets, task.train.inputs


def on(device: str, *arrays: np.ndarray) -> list[Any]:
    return [torch.from_numpy(array).to(device) for array in arrays]


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"alpha": "gcv"}, {"alpha": "kfold"}, {"solver": "qr"}])
def test_weights_equal_those_of_numpy(narma: Any, device: str, options: Any) -> None:
    states, targets, _ = narma
    wanted = RidgeReadout(washout=100, **options).fit(states, targets)
    found = RidgeReadout(washout=100, **options).fit(*on(device, states, targets))
    # A search takes the smallest alpha, which rounding errors show most with.
    assert relative(found.weights_, wanted.weights_) < (1e-8 if "alpha" in options else 1e-9)
    assert found.alpha_ == wanted.alpha_


@pytest.mark.parametrize("device", DEVICES)
def test_chunks_cannot_change_the_weights_and_may_come_from_anywhere(narma: Any, device: str) -> None:
    states, targets, inputs = narma
    wanted = RidgeReadout(washout=100, input_connection=True).fit(states, targets, inputs)
    mixed = RidgeReadout(washout=100, input_connection=True)
    for number, start in enumerate(range(0, 6000, 700)):
        part = slice(start, start + 700)
        given, *_ = on(device, states[:, part]) if number % 2 == 0 else [states[:, part]]
        mixed.partial_fit(given, targets[:, part], inputs[:, part])
    assert relative(mixed.solve().weights_, wanted.weights_) < 1e-9


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_answers_are_tensors_on_the_device_of_the_states(narma: Any, device: str, dtype: str) -> None:
    states, targets, inputs = (array.astype(dtype) for array in narma)
    readout = RidgeReadout(input_connection=True).fit(states, targets, inputs)
    wanted = readout.predict(states, inputs)
    x, u = on(device, states, inputs)
    found = readout.predict(x, u)
    assert found.device == x.device
    assert found.dtype == x.dtype
    summed = np.abs(states) @ np.abs(readout.weights_[:, :100]).T + np.abs(inputs * readout.weights_[:, 100:])
    assert np.all(np.abs(found.cpu().numpy() - wanted) < 8 * np.finfo(dtype).eps * summed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [RLSReadout, LMSReadout])
def test_online_readouts_learn_from_tensors_and_answer_with_tensors(narma: Any, device: str, kind: Any) -> None:
    states, targets, _ = (array[:, :500] for array in narma)
    wanted = kind().predict_then_update(states, targets)
    readout = kind()
    found = readout.predict_then_update(*on(device, states, targets))
    assert found.device.type == device
    assert np.array_equal(found.cpu().numpy(), wanted)
    x, y = on(device, states[:, 0], targets[:, 0])
    assert readout.step(x, y).device.type == device


def test_learning_leaves_gradients_behind_and_answers_pass_them() -> None:
    x = torch.randn(1, 300, 3, requires_grad=True)
    readout = RidgeReadout().fit(x, x.detach().numpy()[..., :1])
    readout.predict(x).sum().backward()
    assert x.grad is not None
    assert x.grad[0, 0].numpy() == pytest.approx(readout.weights_[0], abs=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_a_tensor_that_cannot_be_learned_from_is_refused_in_the_words_for_arrays(value: float) -> None:
    x = np.random.default_rng(0).standard_normal((2, 50, 3))
    x[1, 20, 2] = value
    y = np.zeros((2, 50, 1))
    with pytest.raises(InputRangeError) as wanted:
        RidgeReadout().fit(x, y)
    with pytest.raises(InputRangeError) as found:
        RidgeReadout().fit(torch.from_numpy(x), y)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("make", [RidgeReadout, RLSReadout])
def test_tensors_of_every_kind_are_learned_from_or_refused(narma: Any, make: Any) -> None:
    x, y = (torch.from_numpy(array[:, :300]).bfloat16() for array in narma[:2])
    wanted = make().fit(x.float().numpy(), y.float().numpy())
    for states, targets in (
        (x, y),
        (x.float().to_sparse(), y),
        (x.float().requires_grad_(), y.float().requires_grad_()),
    ):
        for given in (states, states.detach().float().to_dense().numpy()):
            found = make().fit(given, targets)
            assert relative(found.weights_, wanted.weights_) < 1e-5
    assert relative(wanted.predict(x.float().to_sparse()).numpy(), wanted.predict(x.float().numpy())) < 1e-4
    for given, error, message in (
        ((x.to("meta"), y), ShapeError, '"meta" holds no numbers'),
        ((x.to(torch.complex64), y), ConfigurationError, "complex"),
        ((x,), ConfigurationError, "targets"),
    ):
        with pytest.raises(error, match=message):
            make().fit(*given)


def test_masked_values_are_no_samples(narma: Any) -> None:
    states, targets = np.ma.masked_array(narma[0][:, :300]), np.ma.masked_array(narma[1][:, :300])
    RidgeReadout().fit(states, targets)
    states[0, 120, 7] = np.ma.masked
    with pytest.raises(InputRangeError, match="states hold nan at step 120 of this chunk, node 7"):
        RidgeReadout().fit(states, targets)
    targets[0, 90] = np.ma.masked
    with pytest.raises(InputRangeError, match="targets hold nan at step 90"):
        RidgeReadout().fit(states.data, targets)
