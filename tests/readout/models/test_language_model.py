"""Language models around a reservoir, and the echo state models of two papers, against their equations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import issparse
from served import ipc_address, served
from torch import Tensor, nn
from toys import SnapshotToy, Toy

from reservoir_hw import Reservoir, open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, ShapeError, StateLost
from reservoir_hw.networks import EsnWeights
from reservoir_hw.readout import (
    AttentionReadout,
    EsnArrays,
    EsnLM,
    LinearReadout,
    LowRankReadout,
    OneHot,
    ReservoirLayer,
    ReservoirLM,
    dense_esn_lm,
    dense_esn_weights,
    given_embedding,
    random_embedding,
    sparse_esn_lm,
    sparse_esn_weights,
)
from reservoir_hw.readout.models.configuration import LinearModelConfig
from reservoir_hw.readout.models.token_model import SparseEmbedding

VOCABULARY, NODES = 13, 20
FUNCTIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}


def tokens(*shape: int, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.tensor(np.random.default_rng(7).integers(0, vocabulary, shape))


def dense(matrix: Any) -> np.ndarray:
    return matrix.toarray() if issparse(matrix) else np.asarray(matrix)


def states_of(W: np.ndarray, W_in: np.ndarray, leak: Any, activation: str, text: np.ndarray) -> np.ndarray:
    """Ueda et al. 2025, eq. 1 of both papers, with the one-hot vectors written out; one text (time,)."""
    h = np.zeros(len(W))
    states = []
    for token in text:
        u = np.zeros(W_in.shape[1])
        u[token] = 1
        h = (1 - leak) * h + leak * FUNCTIONS[activation](W @ h + W_in @ u)
        states.append(h)
    return np.array(states)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextmanager
def layer_of(weights: EsnArrays, **options: Any) -> Iterator[ReservoirLayer]:
    """The same network as a reservoir of the framework, one input per token."""
    given = EsnWeights.from_arrays(weights.W, weights.dense_W_in(), leak=weights.leak)
    gradient = options.pop("gradient", "stop")
    with Esn(given, dtype="float64", gradients=gradient == "through", **options) as reservoir:
        yield ReservoirLayer(reservoir, gradient=gradient)


# ---- weights


def test_sparse_weights_follow_the_definition() -> None:
    """Ueda et al. 2025, eq. 2-4."""
    weights = sparse_esn_weights(400, 300, connections=20, spectral_radius=0.9, input_scaling=0.5, seed=3)
    W, W_in = dense(weights.W), dense(weights.W_in)
    assert (W.shape, W_in.shape) == ((400, 400), (400, 300))
    np.testing.assert_array_equal(SparseEmbedding(weights.W_in)(torch.arange(300)).numpy().T, W_in)
    assert np.abs(np.linalg.eigvals(W)).max() == pytest.approx(0.9, rel=1e-6)
    for matrix in (W, W_in):
        links = (matrix != 0).mean()
        assert links == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / matrix.size))
        # Binomial, not exact: the variance of the number per column is that of independent links.
        assert (matrix != 0).sum(0).var() == pytest.approx(400 * 0.05 * 0.95, rel=0.35)
    values = W_in[W_in != 0]
    assert values.std() == pytest.approx(0.5, rel=0.05)
    assert abs(values.mean()) < 0.03
    assert isinstance(weights.leak, np.ndarray)
    assert weights.leak.shape == (400,)
    assert (weights.leak.min(), weights.leak.max()) == pytest.approx((0, 1), abs=0.02)


def test_exact_weights_have_that_many_links_in_each_column() -> None:
    weights = sparse_esn_weights(100, 300, connections=7, exact=True, seed=3)
    for matrix in (weights.W, weights.W_in):
        assert ((dense(matrix) != 0).sum(0) == 7).all()
    # All rows are equally likely.
    per_row = (dense(weights.W_in) != 0).sum(1)
    assert per_row.mean() == pytest.approx(21)
    assert per_row.var() == pytest.approx(300 * 0.07 * 0.93, rel=0.5)


def test_dense_weights_follow_the_definition() -> None:
    """Ueda et al. 2025 (in Japanese), eq. 3-5."""
    weights = dense_esn_weights(300, 50, input_scaling=2.0, seed=3)
    assert np.abs(np.linalg.eigvals(weights.W)).max() == pytest.approx(0.993, rel=1e-6)
    assert (weights.W == 0).mean() == pytest.approx(0.5, abs=0.01)
    assert weights.W_in.std() == pytest.approx(2.0, rel=0.03)
    assert weights.W_in.all()
    assert weights.leak == 0.8


def test_seeds_and_streams() -> None:
    base = sparse_esn_weights(50, 30, connections=5, seed=1)
    for changed, same in (
        (sparse_esn_weights(50, 30, connections=5, seed=1), ("W", "W_in", "leak")),
        (sparse_esn_weights(50, 30, connections=5, input_scaling=3, seed=1), ("W", "leak")),
        (sparse_esn_weights(50, 30, connections=5, leak=0.5, seed=1), ("W", "W_in")),
        (sparse_esn_weights(50, 30, connections=5, spectral_radius=0.5, seed=1), ("W_in", "leak")),
        (sparse_esn_weights(50, 30, connections=5, seed=2), ()),
    ):
        for name in ("W", "W_in", "leak"):
            equal = np.array_equal(dense(getattr(base, name)), dense(getattr(changed, name)))
            assert equal == (name in same), name
    few, many = (dense_esn_weights(9, size, seed=1).W_in for size in (5, 8))
    np.testing.assert_array_equal(few, many[:, :5])


# ---- counts of the papers


@pytest.mark.parametrize("exact", [True, False])
def test_counts_of_the_sparse_model(exact: bool) -> None:
    """Ueda et al. 2025, eq. 6-9: exact, or in expectation."""
    nodes, vocabulary, d, rank = 256, 500, 8, 16
    counts = sparse_esn_lm(nodes, vocabulary, rank=rank, connections=d, exact=exact, seed=0).counts()
    assert counts.trainable == (nodes + vocabulary) * rank + vocabulary
    frozen, total = (nodes + vocabulary) * d + nodes, (nodes + vocabulary) * (d + rank + 1)
    spread = 0 if exact else 4 * np.sqrt((nodes + vocabulary) * d * (1 - d / nodes))
    assert abs(counts.frozen - frozen) <= spread
    assert abs(counts.total - total) <= spread
    if not exact:
        assert counts.frozen != frozen


@pytest.mark.parametrize("train_input", [False, True])
def test_counts_of_esn_and_esn_i(train_input: bool) -> None:
    vocabulary, nodes = 40, 12
    counts = dense_esn_lm(nodes, vocabulary, train_input=train_input, seed=0).counts()
    assert counts.trainable == (2 if train_input else 1) * vocabulary * nodes + vocabulary
    assert counts.total == 2 * vocabulary * nodes + vocabulary + nodes**2


def test_counts_of_rc_and_aerc_around_a_reservoir() -> None:
    """Köster & Uchida 2026, table I: the frozen embedding of width 16 and the reservoir do not count."""
    with open_reservoir({"kind": "esn", "inputs": 16, "nodes": 75}) as reservoir:
        layer = ReservoirLayer(reservoir)
        model = ReservoirLM(random_embedding(59, 16, seed=0), layer, AttentionReadout(75, 13, 59))
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 15464
        assert not model.trainable_upstream
        assert model.reservoir_layers == [layer]
    with open_reservoir({"kind": "esn", "inputs": 16, "nodes": 250}) as reservoir:
        model = ReservoirLM(random_embedding(59, 16, seed=0), ReservoirLayer(reservoir), LinearReadout(250, 59))
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 14809


# ---- equations


def models() -> dict[str, EsnLM]:
    sparse = sparse_esn_weights(NODES, VOCABULARY, connections=4, seed=5)
    mixed = EsnArrays(dense(sparse.W), sparse.W_in, sparse.leak)
    return {
        "sparse": sparse_esn_lm(NODES, VOCABULARY, rank=6, connections=4, seed=5),
        "sparse exact": sparse_esn_lm(NODES, VOCABULARY, rank=6, connections=4, exact=True, seed=5),
        "dense W": EsnLM(mixed, LowRankReadout(NODES, VOCABULARY, 6)),
        "esn": dense_esn_lm(NODES, VOCABULARY, train_input=False, seed=5),
        "esn+i": dense_esn_lm(NODES, VOCABULARY, train_input=True, seed=5),
    }


def recurrence_of(model: EsnLM) -> tuple[np.ndarray, np.ndarray, Any, str]:
    """W, W_in, leak and activation, out of the model's buffers and parameters."""
    if model.W_rows is None:
        W = model.W_values.numpy()
    else:
        W, rows = np.zeros((NODES, NODES)), model.W_rows.numpy()
        assert model.W_columns is not None
        for i in range(NODES):
            W[i, model.W_columns.numpy()[rows[i] : rows[i + 1]]] = model.W_values.numpy()[rows[i] : rows[i + 1]]
    W_in = model.embedding(torch.arange(VOCABULARY)).detach().numpy().T
    leak = model.leak.numpy() if isinstance(model.leak, Tensor) else model.leak
    return W, W_in, leak, model.activation


@pytest.mark.parametrize("name", models())
def test_log_probabilities_follow_the_equations(name: str) -> None:
    model, text = models()[name].eval(), tokens(2, 15)
    with torch.no_grad():
        found = model(text).log_softmax(-1).numpy()
    readout = model.readout
    if isinstance(readout, LowRankReadout):
        W_out, b_out = readout.A.weight @ readout.B.weight, readout.A.bias
    else:
        assert isinstance(readout, LinearReadout)
        W_out, b_out = readout.weight, readout.bias
    for row in range(2):
        states = states_of(*recurrence_of(model), text[row].numpy())
        truth = log_probabilities(states @ W_out.detach().numpy().T + b_out.detach().numpy())
        np.testing.assert_allclose(found[row], truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", models())
def test_in_pieces_as_in_one(name: str) -> None:
    model, text = models()[name].eval(), tokens(3, 12)
    with torch.no_grad():
        whole = model.features(text)
        model.begin(3)
        pieces = torch.cat([model.advance(part) for part in text.split([1, 4, 0, 7], 1)], 1)
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-14)


def loss_of(model: EsnLM, W_in: np.ndarray, text: np.ndarray, targets: np.ndarray) -> float:
    """Of one text, from the equations, for a given W_in."""
    W, _, leak, activation = recurrence_of(model)
    readout = model.readout
    assert isinstance(readout, LinearReadout)
    logits = states_of(W, W_in, leak, activation, text) @ readout.weight.detach().numpy().T
    rows = log_probabilities(logits + readout.bias.detach().numpy())
    return -float(rows[np.arange(len(text)), targets].mean())


def test_esn_i_learns_its_embedding_through_the_recurrence() -> None:
    model = dense_esn_lm(NODES, VOCABULARY, train_input=True, dropout=0.0, seed=2)
    text = tokens(1, 11)
    text[0, 3:] = text[0, 3:].clamp(min=2)
    text[0, 0] = 1
    targets = tokens(1, 11).roll(-1, 1)
    loss = model.loss(text, targets)
    loss.backward()
    assert isinstance(model.embedding, nn.Embedding)
    gradient = model.embedding.weight.grad
    assert gradient is not None
    W_in = model.embedding.weight.detach().numpy().T.copy()
    assert float(loss.detach()) == pytest.approx(loss_of(model, W_in, text[0].numpy(), targets[0].numpy()), abs=1e-12)
    step = 1e-6
    # Token 1 stands at the beginning only: its gradient has come through ten steps of the recurrence.
    for token, node in [(1, 0), (1, 7), (1, 13), (int(text[0, 5]), 4), (int(text[0, -1]), 2)]:
        losses = []
        for sign in (1, -1):
            moved = W_in.copy()
            moved[node, token] += sign * step
            losses.append(loss_of(model, moved, text[0].numpy(), targets[0].numpy()))
        assert float(gradient[token, node]) == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-8)
    assert gradient[1].abs().max() > 1e-4


def test_dropout_acts_on_the_embedding_and_on_the_features() -> None:
    arrays = EsnArrays(np.zeros((50, 50)), np.ones((50, 4)), 1.0)
    model = EsnLM(arrays, LinearReadout(50, 4), activation="identity", dropout=0.25)
    torch.manual_seed(0)
    features = model.features(torch.zeros(8, 20, dtype=torch.int64)).flatten()
    # Each kept element is scaled twice by 1/0.75; both must be kept.
    kept = features != 0
    torch.testing.assert_close(features[kept], torch.full_like(features[kept], 0.75**-2))
    assert float(kept.double().mean()) == pytest.approx(0.75**2, abs=0.02)
    model.eval()
    assert (model.features(torch.zeros(1, 3, dtype=torch.int64)) == 1).all()


def test_autocast_leaves_the_recurrence_alone() -> None:
    model, text = dense_esn_lm(NODES, VOCABULARY, train_input=True, seed=5).float().eval(), tokens(1, 9)
    with torch.no_grad():
        exact = model.features(text)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model.features(text), exact)


def refused() -> list[tuple[Any, str]]:
    sparse = partial(sparse_esn_weights, nodes=50, vocabulary=9, seed=0)
    weights, readout = sparse_esn_weights(NODES, VOCABULARY, connections=2, seed=0), LinearReadout(NODES, VOCABULARY)
    layer = ReservoirLayer(Toy().open())
    two = partial(random_embedding, 5, 2, seed=0)
    return [
        (lambda: sparse(connections=60), "more than the 50 nodes"),
        (lambda: sparse(connections=0), "connections"),
        (lambda: sparse(connections=5, leak=(0.5, 0.2)), "must rise"),
        (lambda: sparse(connections=5, leak=1.5), "leak must be a number within 0..1"),
        (lambda: sparse(connections=5, spectral_radius=float("nan")), "spectral_radius"),
        (lambda: sparse(connections=5, spectral_radius=float("inf")), "must be a finite number of at least 0, not inf"),
        (lambda: sparse(connections=5, seed=-1), "seed"),
        (lambda: sparse_esn_weights(0, 9, connections=5, seed=0), "nodes"),
        (lambda: dense_esn_weights(1, 5, sparsity=0.999999, seed=0), "spectral radius"),
        (lambda: EsnLM(weights, readout, train_input=True), "sparse W_in would not stay sparse"),
        (lambda: EsnLM(weights, readout, activation="sigmoid"), "activation"),  # type: ignore[arg-type]
        (lambda: EsnLM(weights, readout, dropout=1.0), "dropout"),
        (lambda: ReservoirLM(random_embedding(5, 3, seed=0), layer, LinearReadout(2, 5)), "embedding is 3 wide, the"),
        (lambda: ReservoirLM(two(), layer, LinearReadout(4, 5)), "readout takes 4 features, the reservoir has 2"),
        (lambda: ReservoirLM(two(), layer, LinearReadout(2, 6)), "readout gives 6 logits, the embedding takes 5"),
        (lambda: ReservoirLM(two(trainable=True), layer, LinearReadout(2, 5)), "no gradient passes the reservoir"),
        (lambda: ReservoirLM(nn.Identity(), layer, LinearReadout(2, 5)), "num_embeddings"),
    ]


def test_refused() -> None:
    for use, message in refused():
        with pytest.raises(ConfigurationError, match=message):
            use()
    with Toy() as reservoir:
        # A tied embedding learns by the readout.
        tied, embedding = LinearReadout(2, 5), random_embedding(5, 2, seed=0, trainable=True)
        tied.weight = embedding.weight
        assert ReservoirLM(embedding, ReservoirLayer(reservoir), tied).trainable_upstream
    model = models()["esn"]
    model.begin(1)
    with pytest.raises(ShapeError, match="tokens hold 2 texts, but 1 were begun"):
        model.advance(tokens(2, 3))


# ---- around a reservoir


def test_the_sparse_model_is_the_same_around_a_reservoir() -> None:
    weights = sparse_esn_weights(NODES, VOCABULARY, connections=4, seed=5)
    readout = LowRankReadout(NODES, VOCABULARY, 6)
    text, targets = tokens(3, 10), tokens(3, 10).roll(-1, 1)
    alone = EsnLM(weights, readout)
    with layer_of(weights) as layer:
        model = ReservoirLM(OneHot(VOCABULARY), layer, readout)
        torch.testing.assert_close(model.features(text), alone.features(text), rtol=0, atol=1e-12)
        loss = model.loss(text, targets)
        gradients = torch.autograd.grad(loss, list(readout.parameters()))
        others = torch.autograd.grad(alone.loss(text, targets), list(readout.parameters()))
        for ours, theirs in zip(gradients, others, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_frozen_embeddings() -> None:
    vectors = np.random.default_rng(0).standard_normal((VOCABULARY, 3))
    for embedding in (given_embedding(vectors), given_embedding(torch.tensor(vectors))):
        assert not embedding.weight.requires_grad
        np.testing.assert_array_equal(embedding(tokens(4)).numpy(), vectors[tokens(4)])
    drawn = random_embedding(2000, 16, seed=4, scaling=0.5).weight
    assert float(drawn.std()) == pytest.approx(0.5, rel=0.03)
    assert torch.equal(drawn, random_embedding(2000, 16, seed=4, scaling=0.5).weight)
    assert not torch.equal(drawn, random_embedding(2000, 16, seed=5, scaling=0.5).weight)
    assert random_embedding(5, 2, seed=0, trainable=True).weight.requires_grad
    one_hot = OneHot(4)(torch.tensor([[3, 0]]))
    assert one_hot.tolist() == [[[0, 0, 0, 1], [1, 0, 0, 0]]]
    assert OneHot(4).float()(torch.tensor([1])).dtype == torch.float32
    for bad in (np.zeros(3), np.full((2, 2), np.nan), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(ConfigurationError, match="an embedding is a matrix"):
            given_embedding(bad)


@contextmanager
def devices() -> Iterator[dict[str, Reservoir]]:
    """Reservoirs with two inputs that can be driven step by step, of many kinds."""
    esn = {"kind": "esn", "inputs": 2, "nodes": 30, "seed": 1, "dtype": "float64"}
    with ExitStack() as stack:
        address = stack.enter_context(ipc_address())
        stack.enter_context(served(Esn(EsnWeights.from_arrays(0.5 * np.eye(3), np.ones((3, 2)))), address))
        yield {
            "compiled": stack.enter_context(open_reservoir(esn)),
            "torch": stack.enter_context(open_reservoir({**esn, "gradients": True})),
            "delay loop": stack.enter_context(
                open_reservoir({"kind": "delay_loop", "nodes": 25, "inputs": 2, "dtype": "float64"})
            ),
            "zmq": stack.enter_context(open_reservoir({"kind": "zmq", "address": address, "inputs": 2})),
            "toy": stack.enter_context(Toy()),
            "frozen in turn": stack.enter_context(SnapshotToy(max_batch=1)),
            "replayed": stack.enter_context(Toy(continuity="replayed", memory_steps=40)),
        }


def test_text_generated_step_by_step_is_that_of_whole_sequences() -> None:
    with devices() as all_of_them:
        for name, reservoir in all_of_them.items():
            torch.manual_seed(1)
            layer = ReservoirLayer(reservoir)
            embedding = random_embedding(VOCABULARY, 2, seed=1, scaling=0.3)
            model = ReservoirLM(embedding, layer, LinearReadout(layer.nodes, VOCABULARY))
            with torch.no_grad():
                assert isinstance(model.readout, LinearReadout)
                model.readout.weight *= 8
            text = [3, 1, 4]
            generated = list(model.generate(text, 8, temperature=0))
            sampled = list(model.generate(text, 8, top_k=5, seed=3))
            assert sampled == list(model.generate(text, 8, top_k=5, seed=3)), name
            for token in generated:
                with torch.no_grad():
                    assert token == int(model(torch.tensor([text]))[0, -1].argmax()), name
                text.append(token)
            assert len({*generated, *sampled}) > 1, name


def test_a_device_that_runs_on_cannot_generate() -> None:
    with Toy(continuity="free_running") as reservoir:
        model = ReservoirLM(random_embedding(5, 2, seed=0), ReservoirLayer(reservoir), LinearReadout(2, 5))
        stream = model.generate([1, 2], 5)
        next(stream)
        with pytest.raises(StateLost, match="free running"):
            next(stream)


def test_states_that_are_not_finite() -> None:
    class Broken(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            states = super()._run(u, out)
            states[0, 2, 1] = np.nan
            return states

    with Broken() as reservoir:
        model = ReservoirLM(random_embedding(5, 2, seed=0), ReservoirLayer(reservoir), LinearReadout(2, 5))
        with pytest.raises(DeviceFault, match=r"not finite .*step 2, node 1"):
            model.loss(tokens(1, 6, vocabulary=5), tokens(1, 6, vocabulary=5))


def test_states_are_normalised_where_that_is_asked_for() -> None:
    config = LinearModelConfig(kind="linear", state_norm="layer")
    tokens = torch.tensor([[0, 3, 1, 4, 2, 0]])
    with open_reservoir({"kind": "esn", "nodes": 12, "inputs": 16}) as esn:
        model = config.build(5, [esn])
        plain = LinearModelConfig(kind="linear").build(5, [esn])
        states = model.features(tokens)
        logits, without = model(tokens), plain.readout
        spread = states.var(-1, correction=0, keepdim=True)
        expected = without((states - states.mean(-1, keepdim=True)) / (spread + 1e-5).sqrt())
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 12 * 5 + 5 + 2 * 12
