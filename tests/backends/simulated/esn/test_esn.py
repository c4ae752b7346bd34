"""The simulated echo state network behind the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.networks import EsnWeights

CONFIG: dict[str, Any] = {
    "kind": "esn", "inputs": 3, "nodes": 60, "leak_rate": [0.2, 0.9], "connections_per_node": 7,
    "input_scaling": 0.4, "bias_scaling": 0.1, "seed": 5,
}  # fmt: skip


def inputs(batch: int = 2, time: int = 30, width: int = 3) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (batch, time, width)).astype(np.float32)


def reference(weights: EsnWeights, u: np.ndarray, activation: str) -> np.ndarray:
    """The equation, in float64, as it is written."""
    f = {"tanh": np.tanh, "identity": lambda x: x, "relu": lambda x: np.maximum(x, 0)}[activation]
    W = weights.recurrent()
    W = W if isinstance(W, np.ndarray) else W.toarray()
    s = np.zeros((len(u), weights.nodes))
    states = np.empty((*u.shape[:2], weights.nodes))
    for t in range(u.shape[1]):
        s = (1 - weights.leak) * s + weights.leak * f(s @ W.T + u[:, t] @ weights.W_in.T + weights.bias)
        states[:, t] = s
    return states


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_states_follow_the_equation(gradients: bool, activation: str, dtype: str) -> None:
    over = {"gradients": gradients, "activation": activation, "dtype": dtype}
    with open_reservoir({**CONFIG, **over}) as esn:
        assert isinstance(esn, Esn)
        esn.reset(2)
        states = np.asarray(esn.run(inputs()))
        assert states.dtype == dtype
        truth = reference(esn.weights, inputs().astype(float), activation)
    tolerance = 2e-6 if dtype == "float32" else 1e-12
    assert np.abs(states - truth).max() <= tolerance * max(1.0, np.abs(truth).max())


@pytest.mark.parametrize("gradients", [False, True])
def test_snapshot_transition_and_upload(gradients: bool) -> None:
    u = inputs()
    with open_reservoir({**CONFIG, "gradients": gradients}) as esn:
        esn.reset(2)
        esn.run(u[:, :9])
        frozen = esn.snapshot()
        rest = np.asarray(esn.run(u[:, 9:]))
        esn.reset(1)
        esn.restore(frozen)
        np.testing.assert_array_equal(np.asarray(esn.run(u[:, 9:])), rest)
        given = frozen["device.state"]
        np.testing.assert_allclose(np.asarray(esn.transition(u[:, 9], given)), rest[:, 0], rtol=1e-5, atol=1e-6)
        with pytest.raises(ConfigurationError, match="this device needs"):
            esn.restore({name: array for name, array in frozen.items() if name != "device.state"})
        with pytest.raises(ConfigurationError, match=r"shape \(2, 4\) in the snapshot"):
            esn.restore({**frozen, "device.state": np.zeros((2, 4))})
        fingerprint = esn.spec.identity.fingerprint
        esn.upload({"W": np.zeros((60, 60)), "W_in": np.ones((60, 3))})
        assert esn.spec.identity.fingerprint != fingerprint
        np.testing.assert_allclose(np.asarray(esn.run(u)), np.tanh(u.sum(-1, keepdims=True)).repeat(60, -1), atol=1e-6)
        with pytest.raises(ConfigurationError, match="for 4 nodes and 3 inputs"):
            esn.upload({"W": np.zeros((4, 4)), "W_in": np.ones((4, 3))})
        with pytest.raises(ConfigurationError, match="upload takes W and W_in"):
            esn.upload({"V": np.zeros((4, 4))})


def test_weights_go_through_a_file(tmp_path: Path) -> None:
    u = inputs(1)
    with open_reservoir(CONFIG) as esn:
        assert isinstance(esn, Esn)
        esn.weights.save(tmp_path / "w.safetensors")
        states, fingerprint = np.asarray(esn.run(u)), esn.spec.identity.fingerprint
    loaded = {"kind": "esn", "weights": str(tmp_path / "w.safetensors")}
    with open_reservoir(loaded) as esn:
        np.testing.assert_array_equal(np.asarray(esn.run(u)), states)
        assert esn.spec.identity.fingerprint == fingerprint
    with open_reservoir(loaded, inputs=5) as esn:
        assert (esn.spec.inputs, esn.device_spec.inputs) == (5, 3)
    with pytest.raises(ConfigurationError, match=r"5 channels for 3 inputs of .*input_mask: none"):
        open_reservoir({**loaded, "input_mask": "none"}, inputs=5)


def test_given_arrays() -> None:
    weights = EsnWeights.from_arrays(np.zeros((2, 2)), np.eye(2))
    with Esn(weights, activation="identity") as esn:
        np.testing.assert_array_equal(np.asarray(esn.run(np.array([[[1.0, 2.0], [3.0, 4.0]]]))), [[[1, 2], [3, 4]]])
    with pytest.raises(ConfigurationError, match="unknown activation 'sigmoid': choose one of tanh, relu, identity"):
        Esn(weights, activation="sigmoid")  # type: ignore[arg-type]


def test_a_diverging_network_is_a_fault_that_keeps_its_states() -> None:
    over = {"activation": "identity", "spectral_radius": 50.0, "leak_rate": 1.0}
    with (
        open_reservoir({**CONFIG, **over}) as esn,
        pytest.raises(DeviceFault, match="that diverges") as caught,
    ):
        esn.run(inputs(1, 200))
    assert 5 < caught.value.steps_done < 200
    assert np.isfinite(caught.value.states).all()


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"nodes": None}, "nodes is missing"),
        ({"connectivity": 0.5}, "not both"),
        ({"weights": "w.safetensors"}, "decides about"),
        ({"connections_per_node": 61}, r"connections_per_node must lie in 1\.\.60 \(the nodes\), it is 61"),
        ({"input_scaling": [1.0, 2.0]}, "one per input"),
        ({"device": "tpu"}, "device"),
        ({"leak_rate": 0}, "leak_rate"),
        ({"leak_rate": [0.9, 0.1]}, r"leak_rate \[0\.9, 0\.1\] must be"),
    ],
)
def test_wrong_configurations(over: dict[str, Any], message: str) -> None:
    config = {key: value for key, value in {**CONFIG, **over}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=message):
        open_reservoir(config)
