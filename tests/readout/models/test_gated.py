from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from reservoir_hw.backends.simulated.esn.esn import Esn, EsnConfig
from reservoir_hw.backends.simulated.gated.gated_esn import GatedEsnConfig
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported, ShapeError
from reservoir_hw.networks import EsnWeights
from reservoir_hw.readout import ReservoirLayer, RidgeReadout
from reservoir_hw.readout.models.gated import (
    Candidate,
    DrivenCandidate,
    GatedRecurrence,
    MatrixCandidate,
    SequenceClassifier,
    SettableCandidate,
    TrainedCandidate,
)

pytestmark = pytest.mark.usefixtures("seeded")

BATCH, STEPS, INPUTS, NODES = 3, 7, 4, 5


def network(stack: ExitStack, inputs: int = INPUTS, nodes: int = NODES, **options: Any) -> Esn:
    """An echo state network in float64, which gradients pass through unless it is said otherwise."""
    settings: dict[str, Any] = {"dtype": "float64", "gradients": True, "bias_scaling": 0.3, "seed": 4, **options}
    device = EsnConfig(kind="esn", nodes=nodes, inputs=inputs, **settings).build()
    return cast(Esn, stack.enter_context(device))


def memoryless(stack: ExitStack, esn: Esn, **options: Any) -> Esn:
    """A device that answers to [u; r x] what the network would answer to u in the state r x."""
    W = np.asarray(esn.weights.recurrent())
    joined = np.hstack([np.asarray(esn.weights.W_in), W])
    weights = EsnWeights.from_arrays(np.zeros_like(W), joined, esn.weights.bias)
    return stack.enter_context(Esn(weights, dtype="float64", **{"gradients": True, **options}))


def randomised(recurrence: GatedRecurrence) -> GatedRecurrence:
    """In float64, and with weights of a size that makes the gates move."""
    for parameter in recurrence.double().parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return recurrence


def given(steps: int = STEPS) -> Tensor:
    return torch.randn(BATCH, steps, INPUTS, dtype=torch.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def equation_6(
    weights: dict[str, np.ndarray], u: np.ndarray, frozen: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 6 of Di Sarli et al. 2022 in float64: states and candidates; with `frozen`, these candidates."""
    w = weights
    x = np.zeros((len(u), len(w["W_hat"])))
    states, candidates = [], []
    for t in range(u.shape[1]):
        r = sigmoid(u[:, t] @ w["W_in_r"].T + x @ w["W_hat_r"].T + w["b_r"])
        z = sigmoid(u[:, t] @ w["W_in_z"].T + x @ w["W_hat_z"].T + w["b_z"])
        h = np.tanh(u[:, t] @ w["W_in"].T + (r * x) @ w["W_hat"].T + w["b"]) if frozen is None else frozen[:, t]
        x = z * x + (1 - z) * h
        states.append(x)
        candidates.append(h)
    return np.stack(states, 1), np.stack(candidates, 1)


def weights_of(model: GatedRecurrence, W_in: Any, W_hat: Any, b: Any) -> dict[str, np.ndarray]:
    n = model.nodes
    W_in_gates, W_gates = model.W_in.detach().numpy(), model.W.detach().numpy()
    bias = np.zeros(2 * n) if model.bias is None else model.bias.detach().numpy()
    return {
        "W_in_r": W_in_gates[:n], "W_hat_r": W_gates[:n], "b_r": bias[:n],
        "W_in_z": W_in_gates[n:], "W_hat_z": W_gates[n:], "b_z": bias[n:],
        "W_in": np.asarray(W_in), "W_hat": np.asarray(W_hat), "b": np.asarray(b),
    }  # fmt: skip


def candidates(stack: ExitStack, esn: Esn) -> dict[str, Candidate]:
    """The same untrained candidate in every form that it can have."""
    w = esn.weights
    return {
        "settable": SettableCandidate(ReservoirLayer(esn, gradient="through")),
        "driven": DrivenCandidate(ReservoirLayer(memoryless(stack, esn), gradient="through")),
        "twin": DrivenCandidate(
            ReservoirLayer(memoryless(stack, esn, gradients=False), gradient="twin", twin=memoryless(stack, esn))
        ),
        "settable twin": SettableCandidate(
            ReservoirLayer(network(stack, gradients=False), gradient="twin", twin=network(stack))
        ),
        "matrices": MatrixCandidate(w.W_in, w.recurrent(), w.bias, dtype=torch.float64),
        "trained": TrainedCandidate(INPUTS, NODES),
    }


def matrices_of(candidate: Candidate, esn: Esn) -> tuple[np.ndarray, ...]:
    """W_in, W and b of a candidate: the network's, or those that are trained."""
    if isinstance(candidate, TrainedCandidate):
        parts = (candidate.W_in, candidate.W, candidate.bias)
        return tuple(part.detach().numpy().copy() for part in parts if part is not None)
    return esn.weights.W_in, np.asarray(esn.weights.recurrent()), np.asarray(esn.weights.bias)


FORMS = ["settable", "driven", "twin", "settable twin", "matrices", "trained"]

# ---- the equations


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_rz_equals_equation_6(stack: ExitStack, form: str, bias: bool) -> None:
    esn = network(stack)
    model = randomised(GatedRecurrence(candidates(stack, esn)[form], bias=bias))
    u = given(40)
    expected, _ = equation_6(weights_of(model, *matrices_of(model.candidate, esn)), u.numpy())
    assert np.abs(model(u).detach().numpy() - expected).max() < 1e-6 * 1e-6
    assert np.abs(expected).max() > 0.3


def test_single_precision_is_close(stack: ExitStack) -> None:
    esn = network(stack, dtype="float32", nodes=29)
    model = randomised(GatedRecurrence(SettableCandidate(ReservoirLayer(esn, gradient="through")))).float()
    u = given().float()
    w = weights_of(model, esn.weights.W_in, esn.weights.recurrent(), esn.weights.bias)
    states = model(u)
    assert states.dtype == torch.float32
    assert np.abs(states.detach().numpy() - equation_6(w, u.double().numpy())[0]).max() < 1e-5


def test_a_device_with_a_memory_of_its_own_gets_one_crossing_per_step(stack: ExitStack) -> None:
    device = network(stack, inputs=INPUTS + NODES, gradients=False)
    model = randomised(GatedRecurrence(DrivenCandidate(ReservoirLayer(device))))
    u = given()
    crossed = device.counters.steps
    with torch.no_grad():
        states = model(u).numpy()
    assert device.counters.steps - crossed == BATCH * STEPS
    w = weights_of(model, 0, np.zeros((NODES, NODES)), 0)
    x = s = np.zeros((BATCH, NODES))
    for t in range(STEPS):
        now = u[:, t].numpy()
        r = sigmoid(now @ w["W_in_r"].T + x @ w["W_hat_r"].T + w["b_r"])
        z = sigmoid(now @ w["W_in_z"].T + x @ w["W_hat_z"].T + w["b_z"])
        drive = np.hstack([now, r * x])
        s = np.tanh(
            drive @ np.asarray(device.weights.W_in).T
            + s @ np.asarray(device.weights.recurrent()).T
            + device.weights.bias
        )
        x = z * x + (1 - z) * s
        assert np.abs(states[:, t] - x).max() < 1e-12


def test_chunks_make_no_difference(stack: ExitStack) -> None:
    for candidate in candidates(stack, network(stack)).values():
        model = randomised(GatedRecurrence(candidate))
        u = given(12)
        with torch.no_grad():
            whole = model(u)
            model.begin(BATCH)
            parts = [model.advance(u[:, part]) for part in (slice(0, 1), slice(1, 1), slice(1, 9), slice(9, 12))]
        assert (torch.cat(parts, 1) - whole).abs().max() < 1e-14


# ---- gradients


def numerical(function: Any, array: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a number by every element of an array."""
    result = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        values = []
        for sign in (1, -1):
            array[index] = kept + sign * step
            values.append(function())
        array[index] = kept
        result[index] = (values[0] - values[1]) / (2 * step)
    return result


@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_finite_differences(stack: ExitStack, form: str) -> None:
    esn = network(stack)
    model = randomised(GatedRecurrence(candidates(stack, esn)[form]))
    u = given().requires_grad_(form != "twin")
    target = torch.randn(BATCH, STEPS, NODES, dtype=torch.float64)
    (model(u) * target).sum().backward()
    w = {name: array.copy() for name, array in weights_of(model, *matrices_of(model.candidate, esn)).items()}
    inputs, n = u.detach().numpy().copy(), NODES

    def loss() -> float:
        return float((equation_6(w, inputs)[0] * target.numpy()).sum())

    assert model.bias is not None
    for parameter, gate, rows in (
        *((model.W_in, f"W_in_{gate}", rows) for gate, rows in (("r", slice(0, n)), ("z", slice(n, 2 * n)))),
        *((model.W, f"W_hat_{gate}", rows) for gate, rows in (("r", slice(0, n)), ("z", slice(n, 2 * n)))),
        *((model.bias, f"b_{gate}", rows) for gate, rows in (("r", slice(0, n)), ("z", slice(n, 2 * n)))),
    ):
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad.numpy()[rows], numerical(loss, w[gate]), atol=1e-7, err_msg=gate)
    for name, parameter in model.candidate.named_parameters():
        own = {"W_in": "W_in", "W": "W_hat", "bias": "b"}[name]
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad.numpy(), numerical(loss, w[own]), atol=1e-7, err_msg=name)
    if u.requires_grad:
        assert u.grad is not None
        np.testing.assert_allclose(u.grad.numpy(), numerical(loss, inputs), atol=1e-7)


def test_stop_is_the_gradient_with_the_candidates_held_fixed(stack: ExitStack) -> None:
    esn = network(stack)
    for candidate in (
        SettableCandidate(ReservoirLayer(esn, gradient="stop")),
        DrivenCandidate(ReservoirLayer(memoryless(stack, esn, gradients=False))),
    ):
        model = randomised(GatedRecurrence(candidate))
        u = given()
        model(u).square().sum().backward()
        w = weights_of(model, esn.weights.W_in, esn.weights.recurrent(), esn.weights.bias)
        _, frozen = equation_6(w, u.numpy())

        def loss(w: dict[str, np.ndarray] = w, u: Tensor = u, frozen: np.ndarray = frozen) -> float:
            return float((equation_6(w, u.numpy(), frozen)[0] ** 2).sum())

        w["W_hat_z"] = w["W_hat_z"].copy()
        assert model.W.grad is not None
        np.testing.assert_allclose(model.W.grad.numpy()[NODES:], numerical(loss, w["W_hat_z"]), atol=1e-7)
        # The reset gate acts through the candidate alone.
        assert not model.W.grad[:NODES].any()


def test_a_wrong_twin_gives_the_states_of_the_device_and_the_gradient_of_the_twin(stack: ExitStack) -> None:
    device, twin = network(stack, gradients=False), network(stack, spectral_radius=1.1)
    model = randomised(GatedRecurrence(SettableCandidate(ReservoirLayer(device, gradient="twin", twin=twin))))
    u = given()
    states = model(u)
    w = weights_of(model, device.weights.W_in, device.weights.recurrent(), device.weights.bias)
    assert np.abs(states.detach().numpy() - equation_6(w, u.numpy())[0]).max() < 1e-12
    states.square().sum().backward()
    assert model.W.grad is not None
    by_twin = model.W.grad.clone()
    model.zero_grad()
    through = GatedRecurrence(SettableCandidate(ReservoirLayer(network(stack), gradient="through")))
    through.load_state_dict(model.state_dict(), assign=True)
    through(u).square().sum().backward()
    assert through.W.grad is not None
    similarity = torch.cosine_similarity(by_twin.flatten(), through.W.grad.flatten(), 0)
    assert 0.9 < similarity < 0.99999


# ---- sequence classification


def trained(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@pytest.mark.slow
def test_parameter_counts_of_the_paper(stack: ExitStack) -> None:
    inputs, classes = 300, 6
    sparse: dict[str, Any] = {"inputs": inputs, "nodes": 3230, "connections_per_node": 2, "input_connectivity": 0.01}
    large = [
        EsnConfig(kind="esn", spectral_radius=None, **sparse),
        EsnConfig(kind="esn", spectral_radius=None, leak_rate=0.04, **sparse),
        GatedEsnConfig(
            kind="gated_esn",
            spectral_radius=None, reset_spectral_radius=None, update_spectral_radius=None,
            **sparse,
        ),
    ]  # fmt: skip
    for config in large:
        layer = ReservoirLayer(stack.enter_context(config.build()))
        assert trained(SequenceClassifier(layer, classes)) == 19386
    assert trained(SequenceClassifier(GatedRecurrence(TrainedCandidate(inputs, 20)), classes)) == 19386
    small = network(stack, inputs=inputs, nodes=29)
    for candidate in candidates_of_any_width(stack, small):
        assert trained(SequenceClassifier(GatedRecurrence(candidate), classes)) == 19320
        # One more node, or no biases, would be farther from the paper's budget.
        assert trained(SequenceClassifier(GatedRecurrence(candidate, bias=False), classes)) == 19320 - 58


def candidates_of_any_width(stack: ExitStack, esn: Esn) -> list[Candidate]:
    return [
        SettableCandidate(ReservoirLayer(esn, gradient="through")),
        DrivenCandidate(ReservoirLayer(memoryless(stack, esn), gradient="through")),
        MatrixCandidate(esn.weights.W_in, esn.weights.recurrent()),
    ]


def test_weights_start_as_the_paper_draws_them() -> None:
    model = GatedRecurrence(TrainedCandidate(300, 20))
    assert isinstance(model.candidate, TrainedCandidate)
    assert model.bias is not None
    for matrix in (model.W_in, model.W, model.candidate.W_in, model.candidate.W):
        assert 0.9 / 20 < matrix.abs().max() <= 1 / 20
        assert float(matrix.detach().std()) == pytest.approx(1 / 20 / 3**0.5, rel=0.05)
    assert not model.bias.any()
    assert not model.candidate.bias.any()


def test_padding_does_not_count() -> None:
    model = SequenceClassifier(randomised(GatedRecurrence(TrainedCandidate(INPUTS, NODES))), 3).double()
    u, lengths = given(), torch.tensor([7, 2, 5])
    logits = model(u, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(u[row : row + 1, :length])
        assert (logits[row] - alone[0]).abs().max() < 1e-12
    noisy = u.clone()
    noisy[1, 2:] = 5.0
    assert torch.equal(model(noisy, lengths), logits)


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_number_that_is_none_is_one_clear_error(value: float) -> None:
    model = SequenceClassifier(GatedRecurrence(TrainedCandidate(INPUTS, NODES)), 3)
    u = given().float()
    u[2, 4, 1] = value
    with pytest.raises(InputRangeError, match=r"u at \(sequence, step, channel\) = \(2, 4, 1\) is (nan|-inf)"):
        model.loss(u, torch.tensor([2, 0, 1]))


def test_loss_is_the_cross_entropy_of_the_last_state() -> None:
    candidate = TrainedCandidate(INPUTS, NODES)
    model = SequenceClassifier(randomised(GatedRecurrence(candidate)), 3).double()
    u, labels = given(), torch.tensor([2, 0, 1])
    w = weights_of(model.recurrence, *(a.detach().numpy() for a in (candidate.W_in, candidate.W, candidate.bias)))  # type: ignore[arg-type]
    last = equation_6(w, u.numpy())[0][:, -1]
    logits = last @ model.readout.weight.detach().numpy().T + model.readout.bias.detach().numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = -np.log(probabilities[np.arange(3), labels]).mean()
    assert float(model.loss(u, labels).detach()) == pytest.approx(expected, abs=1e-12)


def test_ridge_regression_of_the_readout(stack: ExitStack) -> None:
    model = SequenceClassifier(ReservoirLayer(network(stack)), 3)
    u, labels = torch.randn(60, 9, INPUTS, dtype=torch.float64), torch.randint(3, (60,))
    lengths = torch.randint(1, 10, (60,))
    model.double().fit_readout([(u[:40], labels[:40], lengths[:40]), (u[40:], labels[40:], lengths[40:])], alpha=0.1)
    last = model.features(u, lengths).numpy()
    expected = RidgeReadout(0.1, standardise=False).fit(last, np.eye(3)[labels]).predict(last)
    assert np.abs(model(u, lengths).detach().numpy() - expected).max() < 1e-10


# ---- what is refused


def test_what_does_not_fit_is_refused(stack: ExitStack) -> None:
    esn = network(stack)
    with pytest.raises(ConfigurationError, match=r"5 inputs and 5 nodes"):
        DrivenCandidate(ReservoirLayer(network(stack, inputs=5)))
    noisy = network(stack, nonidealities={"loop": {"noise": 0.01}})
    with pytest.raises(ConfigurationError, match="its noise belongs to the steps"):
        SettableCandidate(ReservoirLayer(noisy))
    with pytest.raises(ShapeError, match=r"\(nodes, nodes\)"):
        MatrixCandidate(np.ones((3, 2)), np.ones((2, 3)))
    model = GatedRecurrence(SettableCandidate(ReservoirLayer(esn, gradient="through"))).double()
    with pytest.raises(ShapeError, match="u \\(batch, time, 4\\)"):
        model(torch.ones(2, 3, 5))
    with pytest.raises(ShapeError, match="0 were begun"):
        model.advance(given())
    classifier = SequenceClassifier(model, 6).double()
    u = given()
    for lengths in (torch.tensor([1, 2]), torch.tensor([0, 1, 1]), torch.tensor([1, 1, 8]), torch.ones(3)):
        with pytest.raises(ShapeError, match="lengths must be"):
            classifier(u, lengths)
    with pytest.raises(InputRangeError, match="labels go from -1 to 6"):
        classifier.loss(u, torch.tensor([-1, 6, 2]))
    with pytest.raises(ShapeError, match="numbers of 3 classes"):
        classifier.loss(u, torch.zeros(3, 6))
    u[1, 2, 3] = np.nan
    with pytest.raises(InputRangeError, match=r"\(1, 2, 3\) is nan"):
        classifier(u)


def test_no_gradient_is_cut_silently(stack: ExitStack) -> None:
    device = network(stack, gradients=False)
    with pytest.raises(ConfigurationError, match="no gradient passes"):
        ReservoirLayer(device, gradient="through")
    with pytest.raises((ConfigurationError, NotSupported)):
        SettableCandidate(ReservoirLayer(device, gradient="twin", twin=device))
