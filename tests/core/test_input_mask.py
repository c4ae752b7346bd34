"""`input_mask:` spreads a task's channels over the inputs that a device has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from toys import Toy

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import ResetByWaveform

MASK = MaskConfig(seed=3, bias_scaling=0.1)


def inputs(batch: int = 1, time: int = 6, width: int = 5) -> np.ndarray:
    return np.random.default_rng(2).uniform(-0.2, 0.2, (batch, time, width))


def masked(toy: Toy, channels: int = 5) -> Toy:
    toy.spread_inputs(MASK, channels)
    return toy


def test_the_device_gets_the_masked_inputs() -> None:
    u = inputs()
    with masked(Toy()) as toy:
        toy.run(u)
        mask = MASK.build(2, 5)
        assert (toy.spec.inputs, toy.driven[-1].shape) == (5, (1, 6, 2))
        np.testing.assert_array_equal(toy.driven[-1], mask.apply(u))
        assert MaskConfig.model_validate(toy.provenance()["input_mask"]) == MASK
    with Toy() as plain:
        assert plain.spec.identity.fingerprint != toy_fingerprint()


def toy_fingerprint() -> str:
    with masked(Toy()) as toy:
        return toy.spec.identity.fingerprint


def test_limits_are_those_behind_the_mask() -> None:
    u = inputs() * 100
    with masked(Toy(input_range=(-1.0, 1.0))) as toy, pytest.raises(InputRangeError, match=r"\[-1, 1\]"):
        toy.run(u)
    with masked(Toy(input_range=(-1.0, 1.0), out_of_range="clip")) as toy:
        toy.run(u)
        assert toy.counters.clipped > 0
        assert np.abs(toy.driven[-1]).max() == 1


def test_a_reset_waveform_is_for_the_device_itself() -> None:
    with masked(Toy(reset=ResetByWaveform(values=[[0.0, 0.5]]))) as toy:
        np.testing.assert_array_equal(toy.driven[0], [[[0.0, 0.5]]])


def test_from_a_configuration() -> None:
    config: dict[str, Any] = {"kind": "esn", "nodes": 20, "inputs": 2, "input_mask": {"kind": "binary"}}
    u = inputs().astype(np.float32)
    with open_reservoir(config, inputs=5) as masked_esn, open_reservoir({**config, "input_mask": None}) as esn:
        expected = esn.run(MaskConfig(kind="binary").build(2, 5).apply(u))
        np.testing.assert_array_equal(masked_esn.run(u), expected)
        with pytest.raises(ShapeError, match="takes 5"):
            masked_esn.run(u[..., :2])
    with pytest.raises(ConfigurationError, match="how many has the device"):
        open_reservoir({k: v for k, v in config.items() if k != "inputs"}, inputs=5)
    with pytest.raises(ConfigurationError, match="number of channels to spread"):
        open_reservoir(config)


def test_gradients_pass_the_mask() -> None:
    config = {"kind": "esn", "nodes": 20, "inputs": 2, "input_mask": {}, "gradients": True}
    u = torch.tensor(inputs(), dtype=torch.float32, requires_grad=True)
    with open_reservoir(config, inputs=5) as esn, open_reservoir({**config, "gradients": False}, inputs=5) as plain:
        states = torch.as_tensor(esn.run(u))
        states.sum().backward()
        np.testing.assert_allclose(states.detach().numpy(), plain.run(u.detach().numpy()), atol=1e-6)
    assert u.grad is not None
    assert float(u.grad.abs().sum()) > 0


def test_upload_leaves_the_device_behind_the_mask_as_it_is() -> None:
    config = {"kind": "esn", "nodes": 6, "inputs": 5, "input_mask": {"scaling": 0.01},
              "nonidealities": {"drive": {"bits": 8}}}  # fmt: skip
    with open_reservoir(config, inputs=5) as esn:
        before = esn.spec
        weights = esn.weights  # pyright: ignore[reportAttributeAccessIssue]
        esn.upload({"W": weights.recurrent(), "W_in": weights.W_in, "bias": weights.bias, "leak": weights.leak})
        esn.run(inputs())
        assert esn.spec.inputs == before.inputs
        with pytest.raises(InputRangeError, match=r"\[-1, 1\]"):
            esn.run(inputs() * 1e4)


def test_a_mask_in_torch_rounds_alike_in_chunks_and_steps() -> None:
    config = {"kind": "esn", "nodes": 30, "inputs": 7, "gradients": True, "input_mask": {"bias_scaling": 0.1}}
    u = inputs(3, 50, 24).astype(np.float32)
    with open_reservoir(config, inputs=24) as esn:
        esn.reset(3)
        whole = np.asarray(esn.run(u))
        esn.reset(3)
        chunks = [np.asarray(esn.run(part)) for part in np.split(u, [7, 8, 31], axis=1)]
    np.testing.assert_array_equal(np.concatenate(chunks, axis=1), whole)


def test_the_probe_of_a_reset_stays_in_the_range_of_the_device() -> None:
    """It is played behind the mask: what the mask would make of it is no input of the device."""
    device = {"kind": "python", "call": "numpy:tanh", "nodes": 1, "inputs": 1, "simulated": True, "continuity": "held"}
    device |= {"input_range": [0.0, 0.3], "reset": {"kind": "washout", "steps": 5, "probe_steps": 10}}
    mask = {"kind": "one_to_one", "scaling": 0.3, "offset": 0.1}
    with open_reservoir({**device, "input_mask": mask, "resource": "probed behind a mask"}, inputs=1) as reservoir:
        assert reservoir.reset_residual == 0.0
        assert reservoir.counters.steps == reservoir.reset_policy.opening_steps(reservoir.played_steps)
        assert reservoir.counters.clipped == 0
