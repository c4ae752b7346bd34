"""Every non-ideality does what its description says, and nothing else."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.backends.simulated.engines import have_triton
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.backends.simulated.nonidealities.configuration import (
    PRESETS,
    DriveNonidealities,
    LoopNonidealities,
    Nonidealities,
    ReadoutNonidealities,
)
from reservoir_hw.backends.simulated.reservoir import marked
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import parse_reservoir
from reservoir_hw.core.spec import Identity
from reservoir_hw.networks import EsnWeights

NODES = 400
W_in = np.random.default_rng(0).uniform(-1, 1, (NODES, 2))
EVERYTHING: dict[str, Any] = {
    "drive": {"bits": 10},
    "loop": {
        "noise": 0.01, "saturation": 0.8, "bandwidth": 0.7, "mismatch": 0.05, "dead_nodes": 0.1, "drift": 0.02,
        "drift_period_steps": 37, "bits": 12,
    },
    "readout": {"offset": 0.02, "noise": 0.01, "bits": 9, "stuck_nodes": 0.1, "lost_samples": 0.02},
}  # fmt: skip


def inputs(batch: int = 1, time: int = 200, width: int = 2) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (batch, time, width)).astype(np.float32)


def feedforward(**nonidealities: Any) -> Esn:
    """A network without recurrent weights: its ideal states are known, tanh(W_in u)."""
    weights = EsnWeights.from_arrays(np.zeros((NODES, NODES)), W_in)
    return Esn(weights, nonidealities=Nonidealities(**nonidealities), dtype="float64")


def ideal(u: np.ndarray) -> np.ndarray:
    return np.tanh(u.astype(np.float64) @ W_in.T)


def fingerprint(**nonidealities: Any) -> str:
    with feedforward(**nonidealities) as esn:
        return esn.spec.identity.fingerprint


def driven(u: np.ndarray, **nonidealities: Any) -> np.ndarray:
    with feedforward(**nonidealities) as esn:
        esn.reset(len(u))
        return np.asarray(esn.run(u.astype(np.float64)))


# ---- the loop -----------------------------------------------------------------------------------


def test_nothing_is_ideal() -> None:
    u = inputs()
    np.testing.assert_allclose(driven(u), ideal(u), atol=1e-14)
    assert Nonidealities().ideal
    assert not Nonidealities(loop={"noise": 1e-9}).ideal  # pyright: ignore[reportArgumentType]


def test_loop_noise_has_its_standard_deviation_and_no_memory() -> None:
    u = inputs(batch=2)
    noise = driven(u, loop={"noise": 0.03}) - ideal(u)
    assert noise.std() == pytest.approx(0.03, rel=0.01)
    assert abs(noise.mean()) < 0.03 * 5 / np.sqrt(noise.size)
    for shifted in (noise[0, 1:] * noise[0, :-1], noise[0] * noise[1], noise[..., 1:] * noise[..., :-1]):
        assert abs(shifted.mean()) < 0.03**2 * 5 / np.sqrt(shifted.size)
    assert np.mean(np.abs(noise) < 0.03) == pytest.approx(0.6827, abs=0.005)


def test_saturation_is_a_soft_limit() -> None:
    u = inputs()
    states = driven(u, loop={"saturation": 0.5})
    np.testing.assert_allclose(states, 0.5 * np.tanh(ideal(u) / 0.5), atol=1e-14)


def test_bandwidth_is_a_low_pass() -> None:
    u = np.full((1, 30, 2), 0.7, np.float32)
    states = driven(u, loop={"bandwidth": 0.3})
    rise = 1 - 0.7 ** np.arange(1, 31)
    np.testing.assert_allclose(states, rise[None, :, None] * ideal(u), atol=1e-14)


def test_mismatch_is_a_constant_gain_error_of_each_node_and_the_offset_of_the_readout_is_constant() -> None:
    u = inputs()
    ratio, offset = driven(u, loop={"mismatch": 0.1}) / ideal(u), driven(u, readout={"offset": 0.02}) - ideal(u)
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1], ratio.shape), rtol=1e-9)
    np.testing.assert_allclose(offset, np.broadcast_to(offset[:, :1], offset.shape), atol=1e-14)
    assert (ratio[0, 0].std(), offset[0, 0].std()) == pytest.approx((0.1, 0.02), rel=0.15)
    assert ratio[0, 0].mean() == pytest.approx(1, abs=0.03)


def test_dead_nodes_stay_at_zero_whatever_else_is_wrong() -> None:
    u = inputs()
    states = driven(u, loop={"dead_nodes": 0.25})
    dead = ~states.any(axis=(0, 1))
    assert dead.sum() == NODES // 4
    np.testing.assert_allclose(states[..., ~dead], ideal(u)[..., ~dead], atol=1e-14)
    worse = driven(u, loop={**EVERYTHING["loop"], "dead_nodes": 0.25})
    assert not worse[..., dead].any()


def test_drift_is_slow_periodic_and_counts_from_open() -> None:
    u = np.zeros((1, 90, 2), np.float32)
    drift = {"loop": {"drift": 0.05, "drift_period_steps": 40}}
    with feedforward(**drift) as esn:
        whole = esn.run(u[:, :60].astype(np.float64))
        esn.reset(1)
        later = esn.run(u[:, :30].astype(np.float64))
    np.testing.assert_allclose(whole[:, 40:], whole[:, :20], atol=1e-12)
    np.testing.assert_allclose(later, whole[:, 20:50], atol=1e-12)
    amplitude = np.abs(whole).max(axis=(0, 1))
    assert np.sqrt(np.mean(amplitude**2)) == pytest.approx(0.05, rel=0.15)


def test_loop_bits_round_the_states_within_their_limit() -> None:
    u = inputs()
    with feedforward(loop={"bits": 5, "limit": 0.5}) as device:
        states = np.asarray(device.run(u.astype(np.float64)))
        assert device.counters.saturations == np.count_nonzero((states == -0.5) | (states == 0.5 - 1 / 32)) > 0
    lsb = 1 / 32
    np.testing.assert_array_equal(states, np.round(states / lsb) * lsb)
    inside = np.abs(ideal(u)) < 0.5 - lsb
    assert np.abs(states - ideal(u))[inside].max() <= lsb / 2 + 1e-12
    assert (states.min(), states.max()) == (-0.5, 0.5 - lsb)


def test_weight_bits_round_the_weights() -> None:
    config = {"kind": "esn", "nodes": 60, "inputs": 2, "connectivity": 0.05, "input_scaling": 0.9, "bias_scaling": 0.3}
    with open_reservoir({**config, "nonidealities": {"loop": {"weight_bits": 6, "weight_limit": 2}}}) as esn:
        assert isinstance(esn, Esn)
        lsb = 4 / 64
        for array in (esn.weights.W.data, esn.weights.W_in, esn.weights.bias):
            np.testing.assert_array_equal(array, np.round(array / lsb) * lsb)
    with pytest.raises(ConfigurationError, match=r"weight_limit 0\.5"):
        open_reservoir({**config, "nonidealities": {"loop": {"weight_bits": 6, "weight_limit": 0.5}}})


@pytest.mark.slow
def test_both_engines_and_all_kernels_agree_on_a_device_with_everything() -> None:
    loop = {**EVERYTHING["loop"], "bits": None}
    for sparse in (0.05, 1.0):
        config = {
            "kind": "esn", "nodes": 70, "inputs": 2, "connectivity": sparse, "leak_rate": 0.6,
            "nonidealities": {"loop": loop, "readout": {"offset": 0.1, "noise": 0.01, "lost_samples": 0.1}},
        }  # fmt: skip
        for batch in (1, 3, 9):
            u = inputs(batch, 40)
            with open_reservoir(config) as numba_esn, open_reservoir({**config, "gradients": True}) as torch_esn:
                states = []
                for esn in (numba_esn, torch_esn):
                    esn.reset(batch)
                    states.append(np.asarray(esn.run(u)))
            np.testing.assert_allclose(states[0], states[1], atol=2e-6)


def test_gradients_pass_a_device_that_does_not_round() -> None:
    config = {"kind": "esn", "nodes": 30, "inputs": 2, "gradients": True}
    analog = {**EVERYTHING["loop"], "bits": None}
    u = torch.tensor(inputs(time=5), requires_grad=True)
    readout = {"offset": 0.1, "noise": 0.1, "stuck_nodes": 0.2, "lost_samples": 0.1}
    with open_reservoir({**config, "nonidealities": {"loop": analog, "readout": readout}}) as esn:
        torch.as_tensor(esn.run(u)).sum().backward()
    assert u.grad is not None
    assert bool(u.grad.any())
    with pytest.raises(ConfigurationError, match="no gradient passes a converter"):
        open_reservoir({**config, "nonidealities": {"readout": {"bits": 8}}})


# ---- drive and read-out -------------------------------------------------------------------------


@pytest.mark.slow
def test_drive_bits_round_the_inputs_and_declare_their_range() -> None:
    u = inputs() * 0.4
    lsb = 1 / 8
    np.testing.assert_allclose(
        driven(u, drive={"bits": 3, "range": [-0.5, 0.5]}),
        ideal(np.clip(np.floor(u / lsb + 0.5) * lsb, -0.5, 0.5 - lsb)),
        atol=1e-14,
    )
    with feedforward(drive={"bits": 3, "range": [-0.5, 0.5]}) as esn:
        assert (esn.spec.input_range, esn.spec.input_bits) == ((-0.5, 0.5), 3)
        with pytest.raises(InputRangeError, match=r"\[-0.5, 0.5\]"):
            esn.run(np.full((1, 1, 2), 0.6))


def test_readout_noise_has_its_standard_deviation() -> None:
    u = inputs()
    assert (driven(u, readout={"noise": 0.02}) - ideal(u)).std() == pytest.approx(0.02, rel=0.01)


def test_the_adc_rounds_and_counts_what_saturates() -> None:
    u = inputs()
    with feedforward(readout={"bits": 4, "range": [-0.5, 0.5]}) as esn:
        states = esn.run(u.astype(np.float64))
        assert esn.counters.saturations == np.count_nonzero(np.abs(ideal(u)) > 0.5)
        assert esn.counters.saturations > 0
        assert esn.spec.output_bits == 4
    lsb = 1 / 16
    inside = np.abs(ideal(u)) < 0.5 - lsb
    assert np.abs(states - ideal(u))[inside].max() <= lsb / 2 + 1e-12
    assert len(np.unique(states)) == 16


def test_stuck_channels_read_one_value() -> None:
    u = inputs()
    states = driven(u, readout={"stuck_nodes": 0.1, "range": [-0.3, 0.3]})
    stuck = np.ptp(states, axis=(0, 1)) == 0
    assert stuck.sum() == NODES // 10
    assert np.abs(states[0, 0, stuck]).max() <= 0.3
    assert len(np.unique(states[0, 0, stuck])) == NODES // 10
    np.testing.assert_allclose(states[..., ~stuck], ideal(u)[..., ~stuck], atol=1e-14)


def test_lost_samples_read_zero_and_are_counted() -> None:
    u = inputs()
    with feedforward(readout={"lost_samples": 0.05}) as esn:
        states = esn.run(u.astype(np.float64))
        lost = states == 0
        assert esn.counters.lost == lost.sum()
    assert lost.mean() == pytest.approx(0.05, rel=0.05)
    np.testing.assert_allclose(states[~lost], ideal(u)[~lost], atol=1e-14)


@pytest.mark.parametrize("name", ["loop noise", *(f"readout {name}" for name in EVERYTHING["readout"])])
def test_loop_noise_is_fed_back_and_the_readout_leaves_the_loop_alone(name: str) -> None:
    section, _, field = name.partition(" ")
    config = {"kind": "esn", "nodes": 50, "inputs": 2}
    u = inputs(time=50)
    worse = {**config, "nonidealities": {section: {field: EVERYTHING[section][field]}}}
    with open_reservoir(config) as clean, open_reservoir(worse) as device:
        assert not np.array_equal(clean.run(u), device.run(u))
        states = [esn.snapshot()["device.state"] for esn in (clean, device)]
        assert np.array_equal(states[0], states[1]) == (section == "readout")


# ---- noise and the contract ---------------------------------------------------------------------


def kinds() -> list[Any]:
    esn = {"kind": "esn", "nodes": 40, "inputs": 2, "leak_rate": 0.6}
    loop = {"kind": "delay_loop", "nodes": 40, "inputs": 2, "theta": 0.2, "mask": {"scaling": 0.4}}
    return [
        pytest.param({**esn, "connectivity": 1.0}, id="esn dense"),
        pytest.param({**esn, "connectivity": 0.05}, id="esn sparse"),
        pytest.param({**esn, "connectivity": 1.0, "weight_storage": "float16"}, id="esn float16"),
        pytest.param({**esn, "nodes": 500, "connectivity": 1.0}, id="esn threaded"),
        pytest.param({**esn, "gradients": True}, id="esn torch"),
        pytest.param({"kind": "gated_esn", "nodes": 40, "inputs": 2}, id="gated_esn"),
        pytest.param({"kind": "gated_esn", "nodes": 40, "inputs": 2, "gradients": True}, id="gated_esn torch"),
        *(
            pytest.param({**loop, "physics": physics, "tau": tau}, id=f"{physics} tau {tau}")
            for physics in ("mackey_glass", "ikeda", "paquot")
            for tau in (8.0, 8.2, 11.0)
        ),
    ]


def pieces(device: Reservoir, u: np.ndarray, sizes: list[int]) -> np.ndarray:
    ends = np.cumsum(sizes)
    return np.concatenate([np.asarray(device.run(u[:, e - n : e])) for n, e in zip(sizes, ends, strict=True)], axis=1)


@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow), 9])
@pytest.mark.parametrize("config", kinds())
def test_chunks_steps_and_snapshots_meet_the_same_noise(config: dict[str, Any], batch: int) -> None:
    u = inputs(batch, 24)
    analog = {section: {**values, "bits": None} for section, values in EVERYTHING.items()}
    everything = analog if config.get("gradients") else EVERYTHING
    with open_reservoir({**config, "nonidealities": everything}) as device:
        device.reset(batch)
        start = device.snapshot()
        whole = np.asarray(device.run(u))
        device.restore(start)
        np.testing.assert_array_equal(pieces(device, u, [7, 1, 16]), whole)
        device.restore(start)
        np.testing.assert_array_equal(np.stack([np.asarray(device.step(u[:, t])) for t in range(24)], axis=1), whole)
        device.restore(start)
        device.run(u[:, :11])
        middle = device.snapshot()
        device.run(u[:, :2])
    with open_reservoir({**config, "nonidealities": everything}) as another:
        another.restore(middle)
        np.testing.assert_array_equal(np.asarray(another.run(u[:, 11:])), whole[:, 11:])


@pytest.mark.slow
def test_long_runs_are_computed_in_pieces_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    from reservoir_hw.backends.simulated import reservoir as simulated

    u = inputs(2, 60)
    out = np.empty((2, 60, NODES))
    states = []
    for chunk in (1 << 20, 2 * NODES * 7):
        monkeypatch.setattr(simulated, "_CHUNK", chunk)
        with feedforward(**EVERYTHING) as device:
            device.reset(2)
            states.append(device.run(u.astype(np.float64), out=out if chunk < 1 << 20 else None))
    assert states[1] is out
    np.testing.assert_array_equal(*states)


def test_what_a_device_declares() -> None:
    with feedforward() as clean, feedforward(loop={"mismatch": 0.1}) as constant, feedforward(**EVERYTHING) as noisy:
        assert (clean.spec.deterministic, constant.spec.deterministic, noisy.spec.deterministic) == (True, True, False)
        prints = {device.spec.identity.fingerprint for device in (clean, constant, noisy)}
        assert len(prints) == 3
        assert noisy.provenance()["nonidealities"]["loop"]["noise"] == 0.01
        u, states = np.full((2, 2), 0.3), np.zeros((2, NODES))
        gain = constant.transition(u, states) / clean.transition(u, states)
        assert gain[0].std() == pytest.approx(0.1, rel=0.15)
        with pytest.raises(NotSupported, match="noise belongs to the steps"):
            noisy.transition(u, states)


def test_upload_keeps_the_nonidealities() -> None:
    with feedforward(loop={"dead_nodes": 0.5}) as device:
        before = device.spec.identity.fingerprint
        device.upload({"W": np.zeros((NODES, NODES)), "W_in": np.ones((NODES, 2))})
        assert device.spec.identity.fingerprint != before
        states = device.run(np.ones((1, 3, 2)))
        assert np.count_nonzero(states[0, 0]) == NODES // 2


# ---- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_named_or_changed(name: str) -> None:
    by_name = Nonidealities.model_validate(name)
    assert not by_name.ideal
    changed = Nonidealities.model_validate({"preset": name, "readout": {"offset": 0.123}})
    assert changed.readout.offset == 0.123
    assert changed.loop == by_name.loop
    assert changed.readout.model_copy(update={"offset": by_name.readout.offset}) == by_name.readout


@pytest.mark.parametrize(
    ("nonidealities", "message"),
    [
        ("warm", "unknown preset 'warm'"),
        ({"loop": {"noise": -1}}, "greater than or equal to 0"),
        ({"loop": {"noize": 1}}, "noize"),
        ({"readout": {"range": [1, -1]}}, "must be \\[lowest, highest\\]"),
        ({"loop": {"dead_nodes": 1.0}}, "less than 1"),
        ({"readout": {"bits": 40}}, "less than or equal to 24"),
        ({"loop": {"bandwidth": 0}}, "greater than 0"),
    ],
)
def test_mistakes_are_named(nonidealities: Any, message: str) -> None:
    config = {"kind": "esn", "nodes": 4, "inputs": 1, "nonidealities": nonidealities}
    with pytest.raises(ConfigurationError, match=message):
        parse_reservoir(Document.from_mapping(config, "here"))


@pytest.mark.parametrize("batch", [pytest.param(3, marks=pytest.mark.slow), 9])
@pytest.mark.parametrize("config", kinds())
def test_long_batches_are_driven_in_pieces(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], batch: int) -> None:
    from reservoir_hw.backends.simulated import reservoir as simulated

    u = inputs(batch, 30)
    states = []
    for chunk in (1 << 20, batch * config["nodes"] * 7):
        monkeypatch.setattr(simulated, "_CHUNK", chunk)
        with open_reservoir({**config, "nonidealities": {"loop": {"noise": 0.01}}}) as device:
            device.reset(batch)
            states.append(np.asarray(device.run(u)))
    np.testing.assert_array_equal(states[0], states[1])


def test_noise_is_drawn_by_the_seed_of_the_reservoir_unless_it_has_its_own() -> None:
    def noise(of: int, **own: int) -> np.ndarray:
        noisy = {"loop": {"noise": 0.1}, **own}
        config = {"kind": "esn", "nodes": 50, "inputs": 2, "seed": of}
        with open_reservoir({**config, "nonidealities": noisy}) as device, open_reservoir(config) as clean:
            return np.asarray(device.run(inputs(time=1))) - np.asarray(clean.run(inputs(time=1)))

    assert not np.array_equal(noise(1), noise(2))
    np.testing.assert_array_equal(noise(1), noise(1))
    np.testing.assert_allclose(noise(1, seed=4), noise(2, seed=4), atol=1e-6)


def test_a_snapshot_of_another_precision_is_refused() -> None:
    config = {"kind": "esn", "nodes": 5, "inputs": 1}
    with open_reservoir(config) as single, open_reservoir({**config, "dtype": "float64"}) as double:
        frozen = double.snapshot()
        with pytest.raises(ConfigurationError, match=r"is float64 .* in the snapshot, this device needs float32"):
            single.restore(frozen)


def test_gradients_reach_back_to_the_start_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from reservoir_hw.backends.simulated import reservoir as simulated

    monkeypatch.setattr(simulated, "_CHUNK", 100)
    u = torch.tensor(inputs(time=40), requires_grad=True)
    config = {"kind": "esn", "nodes": 30, "inputs": 2, "gradients": True, "spectral_radius": 1.0}
    with open_reservoir({**config, "nonidealities": {"loop": {"noise": 1e-6}}}) as esn:
        torch.as_tensor(esn.run(u))[:, -1].sum().backward()
    assert u.grad is not None
    assert bool(u.grad[0, 0].any())


def some_value(field: Any) -> st.SearchStrategy[Any]:
    """What a field of a section accepts: whole numbers for bits and periods, a rising pair for a range, else shares."""
    if "int" in str(field.annotation):
        return st.integers(2, 24)
    if "tuple" in str(field.annotation):
        return st.tuples(st.floats(-3, -0.01), st.floats(0.01, 3)).map(list)
    return st.floats(0.001, 0.999)


@st.composite
def changed_presets(draw: st.DrawFn) -> dict[str, Any]:
    """A preset with up to three fields given otherwise, with nothing or with what it sets itself."""
    name = draw(st.sampled_from(sorted(PRESETS)))
    given: dict[str, Any] = {"preset": name}
    sections = {"drive": DriveNonidealities, "loop": LoopNonidealities, "readout": ReadoutNonidealities}
    fields = [(section, field) for section, model in sections.items() for field in model.model_fields]
    for section, field in draw(st.lists(st.sampled_from(fields), max_size=3)):
        info = sections[section].model_fields[field]
        preset = PRESETS[name].get(section, {}).get(field, info.default)
        given.setdefault(section, {})[field] = draw(st.one_of(some_value(info), st.just(info.default), st.just(preset)))
    if draw(st.booleans()):
        given["seed"] = draw(st.integers(0, 9))
    return given


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(given=changed_presets())
def test_a_resolved_configuration_is_the_same_device(given: dict[str, Any]) -> None:
    device = Identity(vendor="tests", model="toy", simulated=True)
    read = Nonidealities.model_validate(given)
    for section, fields in given.items():
        if isinstance(fields, dict):
            kept = json.loads(read.model_dump_json())[section]
            assert all(kept[name] == value for name, value in json.loads(json.dumps(fields)).items())
    again = Nonidealities.model_validate(read.model_dump())
    from_file = Nonidealities.model_validate_json(read.model_dump_json(), strict=True)
    assert again == from_file == read
    assert marked(device, again) == marked(device, from_file) == marked(device, read)
    assert again.label == read.label


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nonidealities", "more"),
    [
        ({"preset": "photonic_delay_loop", "loop": {"noise": 0.02}}, {}),
        ({"preset": "memristive_film", "loop": {"noise": 0.02}, "readout": {"bits": 10}, "seed": 7}, {}),
        ({}, {"reservoir.nonidealities.preset": "photonic_delay_loop", "reservoir.nonidealities.loop.noise": 0}),
        ({"preset": "photonic_delay_loop"}, {"reservoir.vary": {"nonidealities.loop.noise": [0, 0.1]}}),
    ],
)
def test_the_configuration_that_a_run_leaves_can_be_run(
    nonidealities: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    document = Document.from_mapping(
        {
            "task": {"kind": "narma", "train_steps": 150, "test_steps": 50},
            "reservoir": {"kind": "esn", "nodes": 10, "nonidealities": nonidealities},
            "readout": {"kind": "ridge"},
            "run": {"folder": str(tmp_path)},
        },
        "here",
    )
    for key, value in more.items():
        document.set(key, value, "there")
    first = Experiment(document).run()
    second = Experiment.from_file(first.folder / "experiment.yaml").run()
    found = [
        [(row["label"], row["reservoir"]["identity"]["fingerprint"]) for row in result.provenance["rows"]]
        for result in (first, second)
    ]
    assert found[0] == found[1]
    assert [row.evaluation.metrics for row in first.rows] == [row.evaluation.metrics for row in second.rows]


def test_a_resolved_configuration_can_be_read_whatever_made_the_weights() -> None:
    for config in (
        {"kind": "esn", "nodes": 10, "topology": "delay_line"},
        {"kind": "esn", "weights": "saved.safetensors"},
        {"kind": "gated_esn", "weights": "saved.safetensors"},
        {"kind": "delay_loop", "nodes": 4, "mask": {"file": "saved.safetensors"}},
        {"kind": "esn", "nodes": 10, "inputs": 2, "input_mask": {"file": "saved.safetensors"}},
    ):
        read = parse_reservoir(Document.from_mapping(config, "here"))
        assert parse_reservoir(Document.from_mapping(read.model_dump(mode="json"), "there")) == read


def test_what_nothing_uses_makes_no_other_device() -> None:
    idle = {"drive": {"range": [-3, 3]}, "loop": {"limit": 2, "weight_limit": 9, "drift_period_steps": 5}}
    assert fingerprint(**idle, readout={"range": [0, 1]}) == fingerprint()
    assert Nonidealities.model_validate({**idle, "readout": {"range": [0, 1]}}).ideal
    for section, used, unused in (
        ("drive", {"bits": 8}, {"range": [-3, 3]}), ("loop", {"bits": 8}, {"limit": 2}),
        ("loop", {"weight_bits": 8}, {"weight_limit": 3}), ("loop", {"drift": 0.1}, {"drift_period_steps": 5}),
        ("readout", {"bits": 8}, {"range": [0, 1]}), ("readout", {"stuck_nodes": 0.5}, {"range": [0, 1]}),
    ):  # fmt: skip
        assert fingerprint(**{section: used}) != fingerprint(**{section: {**used, **unused}})


@pytest.mark.parametrize(
    ("nonidealities", "label"),
    [
        ({}, "ESN(9)"),
        ({"loop": {"noise": 0.1}}, "ESN(9)"),
        ("memristive_film", "ESN(9) memristive_film"),
        ({"preset": "memristive_film", "seed": 3, "drive": {"range": [-2, 2]}}, "ESN(9) memristive_film"),
        ({"preset": "memristive_film", "loop": {"noise": 0.02}}, "ESN(9) memristive_film (changed)"),
        (
            {**Nonidealities.model_validate("fixed_point_fpga").model_dump(mode="json"), "preset": "memristive_film"},
            "ESN(9) memristive_film (changed)",
        ),
    ],
)
def test_the_label_tells_the_preset(nonidealities: Any, label: str) -> None:
    config = {"kind": "esn", "nodes": 9, "inputs": 1, "nonidealities": nonidealities}
    assert parse_reservoir(Document.from_mapping(config, "here")).name == label


LIMITS = [0.05, 0.1, 0.3, 0.37, 0.7, 0.9, 1.0, 1.1, 1.3, 1.7, 2.3, 3.9]


@pytest.mark.parametrize(
    "limits", [LIMITS[1::4], pytest.param(LIMITS, marks=pytest.mark.slow)], ids=["some limits", "all limits"]
)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["esn", "esn sparse", "esn torch", "gated_esn", "gated_esn torch", "delay_loop", "delay_loop torch"]
)
def test_both_ends_of_the_loops_range_are_counted_whatever_its_limit(
    kind: str, dtype: str, limits: list[float]
) -> None:
    name, _, more = kind.partition(" ")
    config: dict[str, Any] = {"kind": name, "inputs": 2, "nodes": 60, "dtype": dtype}
    if name == "delay_loop":
        config["physics"] = {"kind": "paquot", "feedback_gain": 1.2, "input_gain": 8.0}
    else:
        config["input_scaling"] = 60.0
    if more == "sparse":
        config["connections_per_node"] = 3
    if more == "torch":
        config["engine"] = "torch"
    u = inputs(2, 30).astype(dtype)
    for limit in limits:
        for bits in (2, 8, 13, 24):
            with open_reservoir(
                {**config, "nonidealities": {"loop": {"bits": bits, "limit": limit, "noise": 0.5 * limit}}}
            ) as device:
                assert device.native == ("torch" if more == "torch" else "numpy")
                device.reset(2)
                states = np.asarray(device.run(u))
                low, high = states.min(), states.max()
                assert low == -np.dtype(dtype).type(limit)
                assert high == pytest.approx(limit - 2 * limit / 2**bits, rel=1e-6)
                assert device.counters.saturations == np.count_nonzero((states == low) | (states == high))


IN_TORCH: dict[str, dict[str, Any]] = {
    "esn": {"leak_rate": 0.7}, "esn sparse": {"connections_per_node": 4}, "gated_esn": {},
    "delay_loop": {"physics": {"kind": "paquot", "input_gain": 0.8}, "mask": {"scaling": 0.45}},
    "delay_loop ikeda": {"physics": {"kind": "ikeda", "input_gain": 0.8}, "mask": {"scaling": 0.45}},
}  # fmt: skip


def in_engine(name: str, engine: str, nonidealities: dict[str, Any], **over: Any) -> Reservoir:
    kind = name.split()[0]
    config = {"kind": kind, "nodes": 40, "inputs": 2, "engine": engine, "nonidealities": nonidealities}
    return open_reservoir({**config, **IN_TORCH[name], **over})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", IN_TORCH)
def test_a_device_is_the_same_in_torch(name: str, dtype: str) -> None:
    """The same patterns, noise, drift, losses and counts; a snapshot of one engine goes on in the other."""
    # Without bits behind the loop: beside a threshold the last place decides about a whole step.
    everything = {
        "drive": EVERYTHING["drive"], "loop": {**EVERYTHING["loop"], "bits": None},
        "readout": {**EVERYTHING["readout"], "bits": None, "range": [-0.5, 0.5]},
    }  # fmt: skip
    u = inputs(3, 40).astype(dtype)
    states, lost, frozen = {}, {}, {}
    for engine in ("numba", "torch"):
        with in_engine(name, engine, everything, dtype=dtype) as device:
            assert device.provenance()["engine"] == engine
            device.reset(3)
            device.run(u)
            device.reset(3)
            first = np.asarray(device.run(u))
            frozen[engine] = device.snapshot()
            states[engine] = np.concatenate([first, device.run(u)], axis=1)
            lost[engine] = device.counters.lost
    with in_engine(name, "torch", everything, dtype=dtype) as device:
        device.restore(frozen["numba"])
        tail = np.asarray(device.run(u))
    tolerance = 1e-12 if dtype == "float64" else 5e-6
    np.testing.assert_allclose(states["torch"], states["numba"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(tail, states["numba"][:, 40:], rtol=0, atol=tolerance)
    assert lost["torch"] == lost["numba"] > 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("engine", ["torch", "cuda_graphs", "triton"])
@pytest.mark.parametrize("name", IN_TORCH)
def test_a_device_is_the_same_on_a_gpu(name: str, engine: str) -> None:
    if engine == "cuda_graphs" and name not in ("esn", "gated_esn"):
        pytest.skip("CUDA graphs are for dense networks")
    if engine == "triton" and not have_triton():
        pytest.skip("triton is not installed")
    everything = {**EVERYTHING, "loop": {**EVERYTHING["loop"], "bits": None}, "readout": {"noise": 0.01}}
    u = inputs(3, 40)
    with in_engine(name, "numba", everything) as cpu, in_engine(name, engine, everything, device="cuda") as gpu:
        for device in (cpu, gpu):
            device.reset(3)
        start = gpu.snapshot()
        whole = np.asarray(gpu.run(u))
        np.testing.assert_allclose(whole, np.asarray(cpu.run(u)), rtol=0, atol=5e-6)
        gpu.restore(start)
        parts = [np.asarray(gpu.run(part)) for part in np.split(u, [1, 12, 39], axis=1)]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
        on_gpu: Any = gpu.run(torch.from_numpy(u).cuda())
        assert on_gpu.is_cuda


@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("name", IN_TORCH)
def test_converters_count_in_torch_as_in_numba(name: str, bits: int) -> None:
    device_of = {"loop": {"noise": 0.01, "bits": bits, "limit": 0.2}, "readout": {"bits": bits, "range": [-0.1, 0.1]}}
    counted, states = [], []
    for engine in ("numba", "torch"):
        with in_engine(name, engine, device_of, dtype="float64") as device:
            device.reset(3)
            states.append(np.asarray(device.run(inputs(3, 40).astype(np.float64))))
            counted.append(device.counters.saturations)
    np.testing.assert_array_equal(states[0], states[1])
    assert counted[0] == counted[1] > 100


@pytest.mark.parametrize("name", IN_TORCH)
def test_no_bit_depends_on_how_a_torch_run_is_divided(name: str) -> None:
    u = inputs(3, 30)
    with in_engine(name, "torch", {**EVERYTHING, "loop": {**EVERYTHING["loop"], "saturation": None}}) as device:
        device.reset(3)
        start = device.snapshot()
        with torch.inference_mode():
            whole = np.asarray(device.run(u))
        for cuts in ([11, 12], range(1, 30)):
            device.restore(start)
            parts = [np.asarray(device.run(part)) for part in np.split(u, cuts, axis=1)]
            np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("name", IN_TORCH)
def test_a_transition_in_torch_is_the_step_of_the_run(name: str) -> None:
    u = inputs(3, 6)
    still = {"drive": {"bits": 10}, "loop": {"saturation": 0.8, "bandwidth": 0.7, "mismatch": 0.05, "dead_nodes": 0.1}}
    over = {"tau": 0.2 * 40} if name.startswith("delay_loop") else {}
    with in_engine(name, "torch", still, **over) as device:
        device.reset(3)
        states = np.asarray(device.run(u))
        before = device.snapshot()
        np.testing.assert_array_equal(np.asarray(device.transition(u[:, 5], states[:, 4])), states[:, 5])
        after = device.snapshot()
    assert all(np.array_equal(before[part], after[part]) for part in before)


@pytest.mark.slow
def test_the_sequences_after_a_restore_are_numbered_as_in_the_undisturbed_run() -> None:
    u = inputs(2).astype(np.float64)

    def after(disturb: Callable[[Reservoir], None]) -> list[np.ndarray]:
        with feedforward(loop={"noise": 0.1}, readout={"noise": 0.1}) as device:
            device.reset(2)
            device.run(u)
            disturb(device)
            states = [np.asarray(device.run(u))]
            for _ in range(2):
                device.reset(2)
                states.append(np.asarray(device.run(u)))
            return states

    def elsewhere(device: Reservoir) -> None:
        frozen = device.snapshot()
        for batch in (1, 5, 2):
            device.reset(batch)
            device.run(inputs(batch).astype(np.float64))
        device.restore(frozen)

    def in_a_new_process(device: Reservoir) -> None:
        frozen = device.snapshot()
        device.close()
        device.open()
        device.restore(frozen)

    undisturbed = after(lambda device: None)
    for disturb in (elsewhere, in_a_new_process):
        for ours, theirs in zip(after(disturb), undisturbed, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_noise_that_drowns_the_states_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = {"kind": "delay_loop", "nodes": 50, "inputs": 1, "nonidealities": "photonic_delay_loop"}
    u = np.random.default_rng(0).uniform(0, 0.5, (1, 500, 1))
    for physics, warnings in (("mackey_glass", 1), ("ikeda", 1), ("paquot", 0)):
        caplog.clear()
        with open_reservoir({**loop, "physics": physics}) as device:
            for _ in range(3):
                device.reset(1)
                device.run(u)
        assert len(caplog.records) == warnings, physics
        assert all("with a loop noise of 0.01 the states spread by no more than" in m for m in caplog.messages)
    # Who measures the noise itself drives with nothing.
    with open_reservoir(loop) as device:
        device.run(np.zeros_like(u))
    assert not caplog.records


@pytest.mark.parametrize("kind", ["esn", "gated_esn"])
def test_weights_beyond_their_limit_are_found_without_a_device(kind: str) -> None:
    few = {"kind": kind, "nodes": 20, "nonidealities": {"loop": {"weight_bits": 8, "weight_limit": 0.1}}}
    config = parse_reservoir(Document.from_mapping(few, "here"))
    with pytest.raises(ConfigurationError, match=r"beyond nonidealities\.loop\.weight_limit 0\.1"):
        config.for_inputs(1)


SLOW_LOOP = {"kind": "delay_loop", "nodes": 500, "inputs": 1, "nonidealities": "photonic_delay_loop"}


@pytest.mark.parametrize(
    ("over", "batch", "cuts", "leading"),
    [
        ({}, 64, [250], 0),
        ({"nodes": 20_000}, 1, [150], 0),
        ({}, 1, [50] * 4, 0),
        ({}, 1, [1] * 120, 0),
        ({}, 1000, [2], 0),
        ({}, 1, [200, 300], 200),
        ({}, 1, [500], 200),
        ({"nonidealities": {"loop": {"noise": 0.01}, "readout": {"noise": 0.1, "lost_samples": 0.1}}}, 1, [500], 0),
    ],
    ids=["batch", "many nodes", "calls", "steps", "short", "zeros, then", "zeros in front", "readout"],
)
def test_drowned_states_are_told_however_they_are_driven(
    over: dict[str, Any], batch: int, cuts: list[int], leading: int, caplog: pytest.LogCaptureFixture
) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (batch, sum(cuts), 1))
    u[:, :leading] = 0
    for physics, warnings in (("mackey_glass", 1), ({"kind": "paquot", "input_gain": 1.0}, 0)):
        caplog.clear()
        with open_reservoir({**SLOW_LOOP, **over, "physics": physics}) as device:
            device.reset(batch)
            for part in np.split(u, np.cumsum(cuts)[:-1], axis=1):
                device.run(part)
        assert len(caplog.records) == warnings


def test_constant_inputs_and_dead_nodes_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    u = np.zeros((1, 600, 1))
    u[:, 200:] = 0.5
    with open_reservoir(SLOW_LOOP) as device:
        device.run(u)
    dead = {"loop": {"noise": 0.05, "dead_nodes": 0.97}}
    for gradients in (False, True):
        with open_reservoir(
            {"kind": "esn", "nodes": 100, "inputs": 2, "nonidealities": dead, "gradients": gradients}
        ) as device:
            device.run(inputs())
    assert not caplog.records


def test_a_noisy_run_holds_its_states_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from reservoir_hw.backends.simulated import reservoir as simulated

    monkeypatch.setattr(simulated, "_CHUNK", 1 << 14)
    u = np.random.default_rng(0).uniform(-1, 1, (1, 20_000, 1)).astype(np.float32)
    noisy = {"loop": {"noise": 0.01}, "readout": {"bits": 12}}
    config = {"kind": "delay_loop", "nodes": 100, "inputs": 1, "physics": "paquot", "nonidealities": noisy}
    states = np.zeros((1, 20_000, 100), np.float32)
    with open_reservoir(config) as device:
        device.run(u[:, :500])
        tracemalloc.start()
        try:
            device.reset(1)
            assert device.run(u, out=states) is states
            with_out = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            device.run(u)
            without = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert states.any(axis=2).all()
    assert with_out < 0.6 * states.nbytes
    assert without < 1.6 * states.nbytes


def test_snapshots_of_different_steps_are_not_joined() -> None:
    u = inputs().astype(np.float64)
    with feedforward(loop={"noise": 0.1}) as device:
        device.reset(1)
        early = device.snapshot()
        device.run(u)
        late = device.snapshot()
        with pytest.raises(ConfigurationError, match=r"noise\.(step|age) differs between the sequences"):
            device.restore({name: np.concatenate([early[name], late[name]]) for name in early})
        device.restore({name: np.concatenate([late[name], late[name]]) for name in late})
        states = np.asarray(device.run(np.concatenate([u, u])))
        np.testing.assert_array_equal(states[0], states[1])


def test_a_section_given_as_an_object_keeps_what_the_preset_says() -> None:
    for section in (LoopNonidealities(mismatch=0.02), {"mismatch": 0.02}):
        given = Nonidealities(preset="photonic_delay_loop", loop=section)  # pyright: ignore[reportArgumentType]
        assert (given.loop.noise, given.loop.mismatch, given.readout.bits) == (0.01, 0.02, 12)
    assert Nonidealities(preset="photonic_delay_loop", loop=LoopNonidealities(noise=0.0)).loop.noise == 0


def test_a_seed_counts_where_something_is_drawn() -> None:
    for idle in ({}, {"readout": {"bits": 8}}, {"drive": {"bits": 8}}, {"loop": {"bits": 8, "saturation": 0.5}}):
        assert fingerprint(seed=1, **idle) == fingerprint(seed=2, **idle)
    drawing = {
        "loop": ("noise", "mismatch", "dead_nodes", "drift"),
        "readout": ("offset", "noise", "stuck_nodes", "lost_samples"),
    }
    for section, names in drawing.items():
        for name in names:
            assert fingerprint(seed=1, **{section: {name: 0.1}}) != fingerprint(seed=2, **{section: {name: 0.1}})


def test_the_converter_of_the_memristive_film_has_the_steps_that_its_source_tells() -> None:
    readout = Nonidealities.model_validate("memristive_film").readout
    assert readout.bits is not None
    low, high = readout.range
    assert (high - low) / 2**readout.bits == pytest.approx(78e-6 / 0.2, rel=0.01)
