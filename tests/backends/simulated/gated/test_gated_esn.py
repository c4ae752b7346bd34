"""The simulated gated echo state network (Di Sarli et al. 2022, eq. 6) behind the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
torch = pytest.importorskip("torch")

from safetensors.numpy import save_file  # noqa: E402
from scipy.sparse import csr_array  # noqa: E402

from reservoir_hw import open_reservoir  # noqa: E402
from reservoir_hw.backends.simulated.esn import cpu_loop as esn_kernels  # noqa: E402
from reservoir_hw.backends.simulated.esn import torch_loop  # noqa: E402
from reservoir_hw.backends.simulated.gated import cpu_loop as gated_kernels  # noqa: E402
from reservoir_hw.backends.simulated.gated import torch_loop as gated_torch_loop  # noqa: E402
from reservoir_hw.backends.simulated.gated.gated_esn import GatedEsn  # noqa: E402
from reservoir_hw.backends.simulated.kernels import compiled  # noqa: E402
from reservoir_hw.core.errors import ConfigurationError, NotSupported, ShapeError  # noqa: E402
from reservoir_hw.core.threads import numba_threads  # noqa: E402
from reservoir_hw.networks import EsnWeights, draw_weights  # noqa: E402
from reservoir_hw.networks.weights import GatedWeights, draw_gated_weights  # noqa: E402

CONFIG: dict[str, Any] = {
    "kind": "gated_esn", "inputs": 3, "nodes": 60, "spectral_radius": 0.9, "reset_spectral_radius": 1.5,
    "update_spectral_radius": 0.6, "input_scaling": 0.4, "reset_input_scaling": 2.0, "update_input_scaling": 1.5,
    "bias_scaling": 0.1, "reset_bias": 0.3, "update_bias": -0.4, "seed": 5,
}  # fmt: skip
STORAGE: dict[str, dict[str, Any]] = {"dense": {}, "sparse": {"connections_per_node": 4}}


def open_gated(**over: Any) -> GatedEsn:
    reservoir = open_reservoir({**CONFIG, **over})
    assert isinstance(reservoir, GatedEsn)
    return reservoir


def inputs(batch: int = 2, time: int = 40, width: int = 3) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (batch, time, width)).astype(np.float32)


def dense(weights: EsnWeights) -> np.ndarray:
    W = weights.recurrent()
    return W.toarray() if isinstance(W, csr_array) else W


def reference(weights: GatedWeights, u: np.ndarray, before: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Eq. 6 in float64, as it is written."""

    def sigma(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    state, reset, update = weights.state, weights.reset, weights.update
    W, W_r, W_z = dense(state), dense(reset), dense(update)
    x = np.zeros((len(u), weights.nodes)) if before is None else before
    rows: dict[str, list[np.ndarray]] = {"r": [], "z": [], "x": []}
    for t in range(u.shape[1]):
        now = u[:, t].astype(float)
        r = sigma(now @ reset.W_in.T + x @ W_r.T + reset.bias)
        z = sigma(now @ update.W_in.T + x @ W_z.T + update.bias)
        h = np.tanh(now @ state.W_in.T + (r * x) @ W.T + state.bias)
        x = z * x + (1 - z) * h
        for name, value in (("r", r), ("z", z), ("x", x)):
            rows[name].append(value)
    return {name: np.stack(values, axis=1) for name, values in rows.items()}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_states_follow_the_equation(gradients: bool, storage: str, batch: int, dtype: str, tolerance: float) -> None:
    with open_gated(gradients=gradients, dtype=dtype, **STORAGE[storage]) as gated:
        assert isinstance(gated.weights.state.W, csr_array) is (storage == "sparse")
        gated.reset(batch)
        states = np.asarray(gated.run(inputs(batch)))
        assert states.dtype == dtype
        truth = reference(gated.weights, inputs(batch))
    np.testing.assert_allclose(states, truth["x"], rtol=0, atol=tolerance)


def test_a_step_computed_by_hand() -> None:
    # From x = (0.5, 0) with u = 1: r = (σ(0), σ(1·0.5)), z = (σ(ln 3), σ(0)) = (3/4, 1/2);
    # the second node listens to r_1 x_1 = 0.25, the first one to nothing but the input.
    weights = GatedWeights.from_arrays({
        "state.W": [[0.0, 0.0], [2.0, 0.0]], "state.W_in": [[0.2], [0.0]],
        "reset.W": [[0.0, 0.0], [1.0, 0.0]], "reset.W_in": [[0.0], [0.0]],
        "update.W": np.zeros((2, 2)), "update.W_in": [[np.log(3)], [0.0]],
    })  # fmt: skip
    with GatedEsn(weights, dtype="float64") as gated:
        after = gated.transition(np.array([[1.0]]), np.array([[0.5, 0.0]]))
    expected = [0.75 * 0.5 + 0.25 * np.tanh(0.2), 0.5 * np.tanh(2.0 * 0.25)]
    np.testing.assert_allclose(np.asarray(after)[0], expected, rtol=0, atol=1e-15)


def test_an_update_gate_of_one_keeps_the_state_and_one_of_zero_makes_it_an_esn() -> None:
    u = inputs(1)
    with open_gated(update_bias=200.0, dtype="float64") as gated:
        np.testing.assert_array_equal(np.asarray(gated.run(u)), 0)
    esn = {"kind": "esn", "inputs": 3, "nodes": 60, "spectral_radius": 0.9, "input_scaling": 0.4, "bias_scaling": 0.1}
    with open_gated(update_bias=-200.0, reset_bias=200.0) as gated, open_reservoir({**esn, "seed": 5}) as plain:
        np.testing.assert_allclose(np.asarray(gated.run(u)), np.asarray(plain.run(u)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow), 64])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_one_piece_equals_chunks_equals_steps_bit_for_bit(
    gradients: bool, storage: str, batch: int, noise: float
) -> None:
    u = inputs(batch)

    def states(cuts: list[slice] | None) -> np.ndarray:
        more = {"gradients": gradients, "nonidealities": {"loop": {"noise": noise}}, **STORAGE[storage]}
        with open_gated(**more) as gated:
            gated.reset(batch)
            if cuts is None:
                return np.stack([np.asarray(gated.step(u[:, t])) for t in range(u.shape[1])], axis=1)
            return np.concatenate([np.asarray(c) for c in gated.stream([u[:, cut] for cut in cuts])], axis=1)

    whole = states([slice(None)])
    np.testing.assert_array_equal(states([slice(0, 11), slice(11, 12), slice(12, None)]), whole)
    np.testing.assert_array_equal(states(None), whole)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 9])
def test_a_network_for_two_threads_is_cut_bit_for_bit_too(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(gated_kernels, "cores", lambda: 2)
    monkeypatch.setattr(esn_kernels, "THREADED_BATCH", 0)
    u = inputs(batch)
    with open_gated(nodes=400) as gated:
        gated.reset(batch)
        whole = np.asarray(gated.run(u))
        gated.reset(batch)
        steps = np.stack([np.asarray(gated.step(u[:, t])) for t in range(u.shape[1])], axis=1)
        np.testing.assert_array_equal(steps, whole)
        np.testing.assert_allclose(whole, reference(gated.weights, u)["x"], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_threads_of_a_step_wait_for_each_other() -> None:
    weights = draw_gated_weights(100, 2, seed=0)
    prepared = gated_kernels.prepare(weights, np.float64)
    assert isinstance(prepared, gated_kernels.DenseWeights)
    u = inputs(1, 30, 2)[0].astype(np.float64)
    states = []
    for parts in (1, 2, 3):
        now, gated = np.zeros((2, prepared.gates.shape[1]))
        now[102] = gated[102] = 1
        out, products = np.empty((30, 100)), np.empty(len(prepared.gates))
        code = compiled.activation_code("tanh", prepared.dtype)
        with numba_threads(2):
            gated_kernels._dense_parallel(
                prepared.gates, prepared.candidate, now, gated, products, u, out, code, None, parts
            )
        states.append(out)
    # Were the two loops of a step made one, candidates would be computed before all nodes have been reset.
    np.testing.assert_array_equal(states[1], states[0])
    np.testing.assert_array_equal(states[2], states[0])
    np.testing.assert_allclose(states[0], reference(weights, u[None])["x"][0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("gradients", [False, True])
def test_snapshot_and_transition(gradients: bool) -> None:
    u = inputs()
    with open_gated(gradients=gradients) as gated:
        gated.reset(2)
        gated.run(u[:, :9])
        frozen = gated.snapshot()
        rest = np.asarray(gated.run(u[:, 9:]))
        gated.reset(1)
        gated.restore(frozen)
        np.testing.assert_array_equal(np.asarray(gated.run(u[:, 9:])), rest)
        after = np.asarray(gated.transition(u[:, 9], frozen["device.state"]))
        np.testing.assert_array_equal(after, rest[:, 0])
        elsewhere = np.full((2, 60), 0.5, np.float32)
        truth = reference(gated.weights, u[:, :1], elsewhere.astype(float))["x"][:, 0]
        np.testing.assert_allclose(np.asarray(gated.transition(u[:, 0], elsewhere)), truth, rtol=0, atol=1e-6)
        with pytest.raises(ConfigurationError, match="this device needs"):
            gated.restore({**frozen, "device.state": np.zeros((2, 4))})


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("batch", [1, 16])
def test_loop_nonidealities_act_on_the_new_state(gradients: bool, storage: str, batch: int) -> None:
    # Half the way to saturate(x') at each step, with dead nodes.
    loop = {"saturation": 0.5, "bandwidth": 0.5, "dead_nodes": 0.1}
    u = inputs(batch)
    more = {"gradients": gradients, "dtype": "float64", **STORAGE[storage]}
    with open_gated(nonidealities={"loop": loop}, **more) as gated:
        gated.reset(batch)
        states = np.asarray(gated.run(u))
        alive = states.any(axis=(0, 1))
        assert np.count_nonzero(alive) == 54
        x = np.zeros((batch, 60))
        for t in range(u.shape[1]):
            new = reference(gated.weights, u[:, t : t + 1], x)["x"][:, 0]
            x = alive * (0.5 * x + 0.5 * 0.5 * np.tanh(new / 0.5))
            np.testing.assert_allclose(states[:, t], x, rtol=0, atol=1e-12)


def test_weight_bits_round_every_matrix() -> None:
    with open_gated(nonidealities={"loop": {"weight_bits": 6, "weight_limit": 4.0}}) as gated:
        for part in gated.weights.parts().values():
            for array in (dense(part), part.W_in, part.bias):
                np.testing.assert_array_equal(array * 8, np.round(array * 8))
        states = np.asarray(gated.run(inputs(1)))
        np.testing.assert_allclose(states, reference(gated.weights, inputs(1))["x"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("gradients", [False, True])
def test_upload(gradients: bool) -> None:
    new = draw_gated_weights(60, 3, seed=9, update_bias=1.0)
    arrays = {
        f"{name}.{array}": value
        for name, part in new.parts().items()
        for array, value in (("W", part.recurrent()), ("W_in", part.W_in), ("bias", part.bias))
    }
    with open_gated(gradients=gradients) as gated:
        fingerprint = gated.spec.identity.fingerprint
        gated.upload(arrays)
        assert gated.spec.identity.fingerprint != fingerprint
        np.testing.assert_allclose(np.asarray(gated.run(inputs(1))), reference(new, inputs(1))["x"], rtol=0, atol=1e-6)
        with pytest.raises(ConfigurationError, match=r"for 4 nodes and 3 inputs"):
            gated.upload({n: a[:4, :4] if n.endswith("W") else a[:4] for n, a in arrays.items()})
        with pytest.raises(ConfigurationError, match=r"reset\.W is missing.*V is unknown"):
            gated.upload({"V": np.zeros((4, 4)), **{n: a for n, a in arrays.items() if n != "reset.W"}})
        with pytest.raises(ConfigurationError, match="the update weights of a gated_esn: W holds 1 value"):
            gated.upload({**arrays, "update.W": np.diag([np.nan] + [0.0] * 59)})


@pytest.mark.parametrize("storage", STORAGE)
def test_gradients_are_right(storage: str) -> None:
    drawn = draw_gated_weights(6, 2, seed=0, bias_scaling=0.2)
    if storage == "sparse":
        parts = drawn.parts().items()
        drawn = GatedWeights(**{n: EsnWeights.from_arrays(csr_array(p.recurrent()), p.W_in) for n, p in parts})
    weights = gated_torch_loop.prepare(drawn, np.float64)
    u = torch.rand(2, 3, 2, dtype=torch.float64, requires_grad=True)
    state = torch.rand(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u, s: gated_torch_loop.run(weights, u, s), (u, state))
    if storage == "dense":
        gate = tuple(t.clone().requires_grad_() for t in (weights.reset.W, weights.reset.W_in, weights.reset.bias))

        def trained(W: Any, W_in: Any, bias: Any) -> Any:
            reset = torch_loop.TorchWeights(W, W_in, bias, None)
            return gated_torch_loop.run(weights._replace(reset=reset), u, state)[0]

        assert torch.autograd.gradcheck(trained, gate)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("storage", STORAGE)
def test_gate_statistics(gradients: bool, storage: str) -> None:
    u = inputs(3)
    with open_gated(gradients=gradients, **STORAGE[storage]) as gated:
        found = gated.gate_statistics(u)
        truth = reference(gated.weights, u)
        for gate, values in ((found.reset, truth["r"]), (found.update, truth["z"])):
            assert (gate.mean, gate.std, gate.max) == pytest.approx(
                (values.mean(), values.std(), values.max()), abs=1e-6
            )
        after = gated.snapshot()["device.state"]
        np.testing.assert_allclose(after, truth["x"][:, -1], rtol=0, atol=1e-6)
        with pytest.raises(ShapeError, match="gate_statistics takes inputs"):
            gated.gate_statistics(u[0])
        with pytest.raises(ShapeError, match="gate_statistics takes inputs"):
            gated.gate_statistics(u[:, :0])


def test_gate_statistics_in_parts_and_with_a_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    u = inputs(2)
    coarse = {"drive": {"bits": 3}}
    with open_gated(nonidealities=coarse) as gated:
        whole = gated.gate_statistics(u)
        monkeypatch.setattr("reservoir_hw.backends.simulated.gated.gated_esn._CHUNK", 500)
        in_parts = gated.gate_statistics(u)
        assert in_parts.update.std == pytest.approx(whole.update.std)
        assert (in_parts.reset.max, in_parts.update.max) == (whole.reset.max, whole.update.max)
        # The gates see what the converter leaves of the inputs.
        converted = np.clip(np.floor(u * 4 + 0.5) / 4, -1, 0.75)
        truth = reference(gated.weights, converted)
    assert whole.update.mean == pytest.approx(truth["z"].mean(), abs=1e-6)
    assert whole.update.max == pytest.approx(truth["z"].max(), abs=1e-6)
    noisy = {"readout": {"noise": 0.1}}
    with open_gated(nonidealities=noisy) as gated, pytest.raises(NotSupported, match="leave readout out"):
        gated.gate_statistics(u)


def test_gates_that_do_not_listen_rest_at_their_bias() -> None:
    still = {"spectral_radius": 0.0, "input_scaling": 0.0}
    options = {f"{gate}_{name}": value for gate in ("reset", "update") for name, value in still.items()}
    with open_gated(**options) as gated:
        found = gated.gate_statistics(inputs(1))
    assert found.reset.mean == pytest.approx(1 / (1 + np.exp(-0.3)))
    assert (found.update.mean, found.update.max) == pytest.approx((1 / (1 + np.exp(0.4)),) * 2)
    assert found.update.std == pytest.approx(0, abs=1e-7)


def test_weights_go_through_a_file(tmp_path: Path) -> None:
    u = inputs(1)
    path = tmp_path / "gated.safetensors"
    for storage in STORAGE.values():
        with open_gated(**storage) as gated:
            gated.weights.save(path)
            states, fingerprint = np.asarray(gated.run(u)), gated.spec.identity.fingerprint
            assert set(gated.provenance()["spectral_scale"]) == {"state", "reset", "update"}
        with open_reservoir({"kind": "gated_esn", "weights": str(path)}) as gated:
            np.testing.assert_array_equal(np.asarray(gated.run(u)), states)
            assert gated.spec.identity.fingerprint == fingerprint
    with open_reservoir({"kind": "gated_esn", "weights": str(path)}, inputs=5) as gated:
        assert (gated.spec.inputs, gated.device_spec.inputs) == (5, 3)
    with pytest.raises(ConfigurationError, match=r"5 channels for 3 inputs of .*input_mask: none"):
        open_reservoir({"kind": "gated_esn", "weights": str(path), "input_mask": "none"}, inputs=5)


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gated.safetensors"
    with pytest.raises(ConfigurationError, match="there is no weights file"):
        GatedWeights.load(path)
    draw_weights(5, 1, seed=0).save(path)
    with pytest.raises(ConfigurationError, match=r"not a weights file of reservoir_hw\.gated_esn_weights, version 1: "):
        GatedWeights.load(path)
    save_file({"state.W": np.eye(3)}, path, metadata={"format": "reservoir_hw.gated_esn_weights", "version": "1"})
    with pytest.raises(ConfigurationError, match="damaged"):
        GatedWeights.load(path)


# Changing these digests changes what every published seed means.
@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({}, "3a73c95dee160b0c0343c1eedd3022baa6563ccf7177203961c9734269ade892"),
        (
            {"connections_per_node": 3, "input_connectivity": 0.5},
            "92c21a11d0ed04c0804346c0c0d3923757e9764e035beb788cc9b830ea26cab5",
        ),
    ],
)
def test_drawn_numbers_are_pinned(options: dict[str, Any], digest: str) -> None:
    radii = {"spectral_radius": None, "reset_spectral_radius": None, "update_spectral_radius": None}
    assert draw_gated_weights(40, 2, seed=7, bias_scaling=0.1, **radii, **options).digest() == digest


def test_every_matrix_has_its_own_scale_and_its_own_numbers() -> None:
    plain = draw_gated_weights(50, 2, seed=1)
    scaled = draw_gated_weights(
        50, 2, seed=1, reset_spectral_radius=0.3, update_input_scaling=[2.0, 0.5], input_scaling=0.1
    )
    np.testing.assert_allclose(scaled.reset.recurrent(), plain.reset.recurrent() / 3, rtol=1e-8)
    np.testing.assert_array_equal(scaled.update.W_in, plain.update.W_in * [2.0, 0.5])
    np.testing.assert_array_equal(scaled.state.W_in, plain.state.W_in * 0.1)
    for same in ("state", "update"):
        np.testing.assert_array_equal(getattr(scaled, same).recurrent(), getattr(plain, same).recurrent())
    for part in plain.parts().values():
        assert np.abs(np.linalg.eigvals(part.recurrent())).max() == pytest.approx(0.9, rel=1e-7)
    numbers = [np.concatenate([part.W.ravel(), part.W_in.ravel()]) for part in plain.parts().values()]
    assert np.abs(np.corrcoef(numbers) - np.eye(3)).max() < 0.1
    esn = draw_weights(50, 2, seed=1)
    np.testing.assert_array_equal(plain.state.recurrent(), esn.recurrent())
    np.testing.assert_array_equal(plain.state.W_in, esn.W_in)


def test_weights_that_do_not_fit_together_are_refused() -> None:
    five, six = draw_weights(5, 1, seed=0), draw_weights(6, 1, seed=0)
    with pytest.raises(ConfigurationError, match="the update weights are for 6 nodes and 1 inputs"):
        GatedWeights(five, five, six)
    with pytest.raises(ConfigurationError, match="the reset weights have a leak"):
        GatedWeights(five, draw_weights(5, 1, seed=0, leak_rate=0.5), five)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"nodes": None}, "nodes is missing"),
        ({"connectivity": 0.5, "connections_per_node": 4}, "not both"),
        ({"weights": "w.safetensors"}, r"decides about .*reset_bias.*update_spectral_radius"),
        ({"connections_per_node": 61}, r"connections_per_node must lie in 1\.\.60 \(the nodes\), it is 61"),
        ({"update_spectral_radius": -1.0}, "update_spectral_radius"),
        ({"reset_input_scaling": [1.0, 2.0]}, "one per input"),
        ({"leak_rate": 0.5}, "leak_rate"),
        ({"device": "tpu"}, "device"),
        ({"gradients": True, "nonidealities": {"readout": {"bits": 8}}}, "no gradient passes a converter"),
    ],
)
def test_wrong_configurations(over: dict[str, Any], message: str) -> None:
    config = {key: value for key, value in {**CONFIG, **over}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=message) as caught:
        open_reservoir(config)
    assert len(str(caught.value).splitlines()) == 1


def test_scalings_of_another_number_of_inputs_are_named() -> None:
    config = {**CONFIG, "update_input_scaling": [1.0, 2.0]}
    del config["inputs"]
    with pytest.raises(ConfigurationError, match="update_input_scaling has 2 numbers, the network has 3 inputs"):
        open_reservoir(config, inputs=3)


def test_gate_statistics_count_what_they_clip_once() -> None:
    over = {"nonidealities": {"drive": {"bits": 8}}, "out_of_range": "clip"}
    u = 2 * inputs()
    with open_gated(**over) as gated:
        gated.gate_statistics(u)
        assert gated.counters.clipped == np.count_nonzero(np.abs(u) > 1) > 0


def test_gradients_pass_after_a_run_in_inference_mode() -> None:
    u = torch.ones((2, 3, 3), requires_grad=True)
    with torch.inference_mode():
        esn = open_gated(gradients=True, dtype="float32")
        esn.reset(2)
        esn.run(u.detach())
        frozen = esn.snapshot()
    with esn:
        for again in (lambda: None, lambda: esn.restore(frozen)):
            again()
            u.grad = None
            torch.as_tensor(esn.run(u)).sum().backward()
            assert u.grad is not None
            assert bool(u.grad.any())
