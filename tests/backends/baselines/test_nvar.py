"""Nonlinear vector autoregression as a reservoir: its monomials, the contract, and readouts on it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from reservoir_hw import RidgeReadout, open_reservoir
from reservoir_hw.backends.baselines import Nvar
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.linear.online import RLSReadout
from reservoir_hw.tasks.lorenz import Lorenz

SIZES: list[dict[str, Any]] = [
    {"inputs": 3, "lags": 2, "orders": 3},
    {"inputs": 1, "lags": 5, "orders": [1, 3], "spacing": 2, "constant": True},
    {"inputs": 2, "lags": [4, 2, 1], "orders": [2, 3], "spacing": 3},
]


def written_out(u: np.ndarray, lags: int, spacing: int, powers: np.ndarray) -> np.ndarray:
    """(time, monomials) of one series (time, inputs), product after product."""
    before = np.concatenate([np.zeros(((lags - 1) * spacing, u.shape[1])), u])
    register = [before[(lags - 1 - lag) * spacing :][: len(u)] for lag in range(lags)]
    z = np.concatenate(register, axis=1)
    return np.stack([np.prod(z ** power.ravel(), axis=1) for power in powers], axis=1)


@pytest.mark.parametrize("size", SIZES)
def test_states_are_the_monomials_of_the_register(size: dict[str, Any]) -> None:
    u = np.random.default_rng(0).normal(size=(2, 40, size["inputs"]))
    with Nvar(**size) as nvar:
        powers = nvar.monomials
        by_order = size["lags"] if isinstance(size["lags"], list) else [size["lags"]] * 3
        wanted = range(1, size["orders"] + 1) if isinstance(size["orders"], int) else size["orders"]
        variables = [f"{lag} {channel}" for lag in range(by_order[0]) for channel in range(size["inputs"])]
        all_of_them = {()} if size.get("constant") else set()
        for order in wanted:
            leading = variables[: by_order[order - 1] * size["inputs"]]
            all_of_them |= set(itertools.combinations_with_replacement(leading, order))
        flat = powers.reshape(len(powers), -1)
        found = [tuple(np.repeat(variables, power).tolist()) for power in flat]
        assert len(found) == nvar.spec.nodes == len(all_of_them)
        assert set(found) == all_of_them
        nvar.reset(2)
        states = nvar.run(u)
        for series, answer in zip(u, states, strict=True):
            expected = written_out(series, by_order[0], size.get("spacing", 1), powers)
            np.testing.assert_allclose(answer, expected, rtol=1e-13)


def test_long_series_in_blocks_are_as_short_ones() -> None:
    u = np.random.default_rng(2).normal(size=(1, 9000, 2))
    with Nvar(2, 4, [3]) as nvar:
        whole = nvar.run(u)
        nvar.reset(1)
        parts = [nvar.run(u[:, t : t + 1000]) for t in range(0, 9000, 1000)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_weights_are_those_of_an_independent_computation() -> None:
    task = Lorenz(time_step=0.025, train_steps=402)
    u, y = task.train.inputs[0].astype(np.float64), task.train.targets[0].astype(np.float64)
    with Nvar(3, lags=2, orders=2) as nvar:
        states, powers = nvar.run(u[None]), nvar.monomials
    readout = RidgeReadout(2.5e-6, solver="qr", standardise=False, washout=2).fit(states, y[None])

    z = np.concatenate([u[2:], u[1:-1]], axis=1)
    pairs = [(i, j) for j in range(6) for i in range(j + 1)]
    features = np.concatenate([z, np.stack([z[:, i] * z[:, j] for i, j in pairs], axis=1)], axis=1)
    centred, target = features - features.mean(axis=0), y[2:] - y[2:].mean(axis=0)
    # The penalty as rows of the design: no normal equations.
    design = np.concatenate([centred, np.sqrt(2.5e-6) * np.eye(27)])
    weights = np.linalg.lstsq(design, np.concatenate([target, np.zeros((27, 3))]), rcond=None)[0].T
    bias = y[2:].mean(axis=0) - weights @ features.mean(axis=0)

    order = [np.flatnonzero((powers.reshape(27, 6) == np.eye(6, dtype=int)[i]).all(axis=1))[0] for i in range(6)]
    unit = np.eye(6, dtype=int)
    order += [np.flatnonzero((powers.reshape(27, 6) == unit[i] + unit[j]).all(axis=1))[0] for i, j in pairs]
    np.testing.assert_allclose(readout.weights_[:, order], weights, rtol=0, atol=1e-9)
    np.testing.assert_allclose(readout.bias_, bias, rtol=0, atol=1e-9)


def test_online_equals_batch_after_one_pass() -> None:
    task = Lorenz(time_step=0.025, train_steps=1000)
    with Nvar(3, lags=2, orders=3) as nvar:
        states = nvar.run(task.train.inputs)
    targets = task.train.targets
    batch = RidgeReadout(1e-2, standardise=False, washout=2).fit(states, targets)
    online = RLSReadout(1e-2, standardise=False, washout=2)
    for t in range(0, 1000, 100):
        online.predict_then_update(states[:, t : t + 100], targets[:, t : t + 100])
    np.testing.assert_allclose(online.weights_, batch.weights_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(online.bias_, batch.bias_, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "nodes", "name"),
    [
        ({"kind": "nvar", "lags": 2, "orders": 3, "constant": True}, 84, "NVAR(84)"),
        ({"kind": "nvar", "lags": 3, "spacing": 4, "orders": [2]}, 45, "NVAR(45)"),
        ({"kind": "volterra", "taps": 4, "order": 3}, 454, "Volterra(454)"),
        ({"kind": "volterra", "taps": [4, 2]}, 12 + 21, "Volterra(33)"),
    ],
)
def test_from_a_configuration(config: dict[str, Any], nodes: int, name: str) -> None:
    from reservoir_hw.core.reservoir_config import reservoir_config

    told = reservoir_config(config).for_inputs(3)
    assert told.name == name
    with open_reservoir(config, inputs=3) as reservoir:
        assert reservoir.spec.nodes == nodes
        assert reservoir.spec.memory_steps == told.past_steps


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"kind": "nvar", "lags": 10, "orders": 4},
            r"4 inputs x 10 lags, orders 1 to 4: 135,750 features; at most",
        ),
        ({"kind": "nvar", "orders": []}, "orders"),
        ({"kind": "nvar", "orders": 100_000}, "orders: 100,000 is above 100, the highest order that is offered$"),
        ({"kind": "nvar", "lags": 0}, "lags"),
        ({"kind": "volterra", "taps": [10, 20]}, "longer than that of the order below"),
        ({"kind": "volterra", "taps": [20, 10], "order": 3}, "remove order"),
    ],
)
def test_what_cannot_be_is_one_sentence(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        open_reservoir(config, inputs=4)


def test_from_python_the_same_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="135,750 features"):
        Nvar(4, 10, 4)
    with pytest.raises(ConfigurationError, match="none larger than the one before"):
        Nvar(1, [2, 3], 2)
    with Nvar(1, 3, 1) as nvar:
        state = nvar.snapshot()
        state["device.register"] = np.zeros((1, 5, 1))
        with pytest.raises(ConfigurationError, match="this register needs"):
            nvar.restore(state)
