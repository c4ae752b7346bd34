"""The encoded inputs alone, for the kinds that have an input chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import reservoir_config
from reservoir_hw.core.signal import MaskConfig, Quantiser, Scaling
from reservoir_hw.networks.weights import draw_weights

U = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 20, 2))


def encoded(of: dict[str, Any], u: np.ndarray = U) -> np.ndarray:
    with open_reservoir({"kind": "encoder_only", "of": of}, inputs=u.shape[2]) as reservoir:
        reservoir.reset(len(u))
        whole = np.asarray(reservoir.run(u))
        reservoir.reset(len(u))
        steps = np.stack([reservoir.step(u[:, t]) for t in range(u.shape[1])], axis=1)
        np.testing.assert_array_equal(steps, whole)
        assert reservoir.spec.nodes == whole.shape[2]
        return whole


def test_of_a_network_it_is_what_drives_the_nodes() -> None:
    of = {"kind": "esn", "nodes": 15, "input_scaling": 0.3, "bias_scaling": 0.2, "seed": 4}
    weights = draw_weights(15, 2, seed=4, input_scaling=0.3, bias_scaling=0.2)
    np.testing.assert_allclose(encoded(of), U @ weights.W_in.T + weights.bias, rtol=1e-12)
    gated = encoded({"kind": "gated_esn", "nodes": 15, "seed": 4})
    assert np.linalg.matrix_rank(gated.reshape(-1, 15)) == 2


def test_of_a_delay_loop_it_is_the_mask_behind_the_converter() -> None:
    of = {"kind": "delay_loop", "nodes": 12, "mask": {"kind": "binary", "bias_scaling": 0.1}, "seed": 2}
    mask = MaskConfig(kind="binary", bias_scaling=0.1).build(12, 2, seed=2)
    np.testing.assert_array_equal(encoded(of), mask.apply(U))
    drive = {"bits": 4, "range": [-2.0, 2.0]}
    converted = encoded({**of, "nonidealities": {"drive": drive}})
    np.testing.assert_array_equal(converted, Quantiser(bits=4, range=(-2.0, 2.0)).apply(mask.apply(U))[0])


def test_of_a_bench_it_is_the_volts_that_are_played() -> None:
    address = "TCPIP::127.0.0.1::5025::SOCKET"
    of = {
        "kind": "visa", "device_name": "loop", "simulated": True, "nodes": 10, "theta_s": 1e-6, "memory_steps": 3,
        "scaling": {"gain": 0.2, "offset": 0.5}, "seed": 3, "channels": {"monitor": 2},
        "generator": {"kind": "keysight_33500", "address": address,
                      "outputs": {1: {"range_v": [0.0, 1.0], "safe_v": 0.0, "load_ohm": 50}}},
        "digitizer": {"kind": "keysight_infiniivision", "address": address.replace("5025", "5026"),
                      "inputs": {1: {"range_v": [0.0, 1.0]}, 2: {"range_v": [0.0, 1.0]}}},
    }  # fmt: skip
    expected = Scaling(gain=0.2, offset=0.5).apply(MaskConfig().build(10, 2, seed=3).apply(U))
    np.testing.assert_array_equal(encoded(of), expected)


def test_behind_an_input_mask_and_of_a_device_without_a_chain() -> None:
    of = {"kind": "python", "call": "nowhere:at_all", "nodes": 7, "inputs": 5, "simulated": False,
          "continuity": "held", "reset_call": "nowhere:reset"}  # fmt: skip
    masked = encoded({**of, "input_mask": {"kind": "binary", "seed": 9}})
    np.testing.assert_array_equal(masked, MaskConfig(kind="binary").build(5, 2, seed=9).apply(U))
    given = U.copy()
    untouched = encoded({**of, "inputs": 2}, given)
    untouched += 1
    np.testing.assert_array_equal(given, U)
    np.testing.assert_array_equal(untouched, U + 1)
    # Beyond the range it has what the device gets.
    clipped = encoded({**of, "inputs": 2, "input_range": [-0.2, 0.3], "out_of_range": "clip"})
    np.testing.assert_array_equal(clipped, U.clip(-0.2, 0.3))


def test_names_and_what_cannot_be() -> None:
    loop = {"kind": "delay_loop", "nodes": 12}
    assert reservoir_config({"kind": "encoder_only", "of": loop}).for_inputs(1).name == "encoder only(12)"
    with pytest.raises(ConfigurationError, match="needs `of:`"):
        open_reservoir({"kind": "encoder_only"}, inputs=1)
    with pytest.raises(ConfigurationError, match="has the input_mask of its device"):
        reservoir_config({"kind": "encoder_only", "of": loop, "input_mask": {"kind": "binary"}})
    both = {"kind": "parallel", "devices": [{"reservoir": loop}, {"reservoir": loop}]}
    with pytest.raises(ConfigurationError, match="an input chain for each device"):
        open_reservoir({"kind": "encoder_only", "of": both}, inputs=1)
    one, other = ({"kind": "encoder_only", "of": {**loop, "seed": seed}} for seed in (0, 1))
    with open_reservoir(one, inputs=1) as a, open_reservoir(other, inputs=1) as b:
        assert a.spec.identity.fingerprint != b.spec.identity.fingerprint
