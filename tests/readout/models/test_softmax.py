"""Softmax readouts, and the cross-entropy that never holds the logits of a whole batch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.readout import AttentionReadout, LinearReadout, LowRankReadout, cross_entropy

FEATURES, VOCABULARY = 6, 11
HEADS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: LinearReadout(FEATURES, VOCABULARY),
    "no bias": lambda: LinearReadout(FEATURES, VOCABULARY, bias=False),
    "low rank": lambda: LowRankReadout(FEATURES, VOCABULARY, 3),
    "attention": lambda: AttentionReadout(FEATURES, 4, VOCABULARY),
    "any module": lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, VOCABULARY)),
}


def head(name: str) -> nn.Module:
    torch.manual_seed(3)
    return HEADS[name]().double()


def batch(*, ignored: bool = True) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    targets = rng.integers(0, VOCABULARY, (3, 7))
    if ignored:
        targets[0, 2:] = -1
        targets[2, 3] = -1
    return torch.tensor(rng.standard_normal((3, 7, FEATURES))), torch.tensor(targets)


def mean_negative_log_likelihood(logits: np.ndarray, targets: np.ndarray) -> float:
    """Written out position by position."""
    losses = [
        np.log(np.exp(row - row.max()).sum()) + row.max() - row[target]
        for row, target in zip(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), strict=True)
        if target != -1
    ]
    return float(np.mean(losses))


@pytest.mark.parametrize(("nodes", "count"), [(250, 14809), (500, 29559), (750, 44309), (1750, 103309), (2600, 153459)])
def test_linear_counts_of_table_1(nodes: int, count: int) -> None:
    """Köster & Uchida 2026, table I."""
    assert sum(p.numel() for p in LinearReadout(nodes, 59).parameters()) == count


@pytest.mark.parametrize(
    ("states", "millions"), [(1024, 26), (2048, 27), (4096, 28), (8192, 30), (16384, 34), (32768, 43), (65536, 59)]
)
def test_low_rank_counts_of_table_3(states: int, millions: int) -> None:
    """Ueda et al. 2025, eq. 9 and the trainable column of table 3, which is rounded."""
    with torch.device("meta"):
        readout = LowRankReadout(states, 50257, 512)
    count = sum(p.numel() for p in readout.parameters())
    assert count == (states + 50257) * 512 + 50257
    assert round(count / 1e6) == millions


def test_low_rank_start_is_that_of_footnote_1() -> None:
    torch.manual_seed(0)
    readout = LowRankReadout(400, 900, 100)
    for weight, width in ((readout.A.weight, 100), (readout.A.bias, 100), (readout.B.weight, 400)):
        largest = float(weight.detach().abs().max())
        assert 0.95 * width**-0.5 < largest <= width**-0.5


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("chunk", [1, 4, None])
def test_loss_is_the_mean_negative_log_likelihood(name: str, chunk: int | None) -> None:
    readout, (x, y) = head(name), batch()
    truth = mean_negative_log_likelihood(readout(x).detach().numpy(), y.numpy())
    assert float(cross_entropy(readout, x, y, chunk=chunk).detach()) == pytest.approx(truth, abs=1e-12)
    with torch.no_grad():
        assert float(cross_entropy(readout, x, y, chunk=chunk)) == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("name", HEADS)
def test_gradients_equal_finite_differences(name: str) -> None:
    readout, (x, y) = head(name), batch()
    x.requires_grad_()
    tensors = [x, *readout.parameters()]
    (2.5 * cross_entropy(readout, x, y, chunk=4)).backward()
    step = 1e-6
    rng = np.random.default_rng(5)
    for tensor in tensors:
        assert tensor.grad is not None
        flat = tensor.detach().view(-1)
        for index in rng.choice(flat.numel(), min(8, flat.numel()), replace=False).tolist():
            value, losses = float(flat[index]), []
            for sign in (1, -1):
                flat[index] = value + sign * step
                losses.append(mean_negative_log_likelihood(readout(x).detach().numpy(), y.numpy()))
            flat[index] = value
            numerical = 2.5 * (losses[0] - losses[1]) / (2 * step)
            assert float(tensor.grad.view(-1)[index]) == pytest.approx(numerical, abs=2e-8)


def test_a_tied_weight_gets_both_gradients() -> None:
    torch.manual_seed(0)
    embedding, readout = nn.Embedding(VOCABULARY, FEATURES).double(), head("no bias")
    assert isinstance(readout, LinearReadout)
    readout.weight = embedding.weight
    tokens, (_, targets) = torch.randint(0, VOCABULARY, (3, 7)), batch()
    cross_entropy(readout, embedding(tokens).tanh(), targets, chunk=5).backward()
    chunked = embedding.weight.grad
    embedding.weight.grad = None
    logits = readout(embedding(tokens).tanh()).flatten(0, 1)
    nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-1).backward()
    assert chunked is not None
    assert embedding.weight.grad is not None
    torch.testing.assert_close(chunked, embedding.weight.grad)


def test_a_weight_that_would_get_no_gradient_is_refused() -> None:
    class Borrowing(nn.Module):
        def __init__(self, lender: nn.Embedding) -> None:
            super().__init__()
            self.lender = (lender,)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.lender[0].weight.T

    x, y = batch()
    borrowing = Borrowing(nn.Embedding(VOCABULARY, FEATURES).double())
    with pytest.raises(ConfigurationError, match=r"not among its parameters.*register it"):
        cross_entropy(borrowing, x.requires_grad_(), y, chunk=4)


# ---- memory


class Watch(TorchDispatchMode):
    """The tensors that exist at the same time, of those that are created while it watches."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.peak = 0
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(a.untyped_storage()) for a in args if isinstance(a, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in given and id(storage) not in self.alive:
                    self.alive[id(storage)] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, id(storage), None)
                    self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, sum(self.alive.values()))
        return out


@contextmanager
def watched() -> Iterator[Watch]:
    gc.collect()
    with Watch() as watch:
        yield watch


@pytest.mark.parametrize("kind", ["linear", "low rank"])
def test_logits_exist_for_one_chunk_only(kind: str) -> None:
    positions, vocabulary, features, chunk = 512, 1000, 8, 8
    torch.manual_seed(0)
    readout = LinearReadout(features, vocabulary) if kind == "linear" else LowRankReadout(features, vocabulary, 4)
    x = torch.randn(positions, features, requires_grad=True)
    y = torch.randint(0, vocabulary, (positions,))
    whole = 4 * positions * vocabulary
    with watched() as watch:
        cross_entropy(readout, x, y, chunk=chunk).backward()
    assert watch.largest <= 4 * chunk * vocabulary + 4 * positions * features
    assert watch.peak < whole / 10


# ---- precision


def test_bfloat16_autocast_gives_float32_loss_and_gradients() -> None:
    torch.manual_seed(0)
    readout = LowRankReadout(32, 200, 16)
    x, y = torch.randn(50, 32, requires_grad=True), torch.randint(0, 200, (50,))
    exact = cross_entropy(readout, x, y, chunk=16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(readout, x, y, chunk=16)
        plain = nn.functional.cross_entropy(readout(x).float(), y)
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), abs=1e-6)
    assert abs(float((loss - exact).detach())) > 0
    tensors = [x, *readout.parameters()]
    of_plain = torch.autograd.grad(plain, tensors)
    for ours, theirs in zip(torch.autograd.grad(loss, tensors), of_plain, strict=True):
        assert ours.dtype == torch.float32
        # Rounded to bfloat16 before the mean in one, after it in the other.
        assert float((ours - theirs).norm() / theirs.norm()) < 0.01


# ---- what is refused, what does not count


def test_no_position_counts() -> None:
    readout, (x, y) = head("linear"), batch()
    loss = cross_entropy(readout, x.requires_grad_(), torch.full_like(y, -1))
    loss.backward()
    assert float(loss.detach()) == 0
    for tensor in (x, *readout.parameters()):
        assert tensor.grad is not None
        assert not tensor.grad.any()


def test_what_stands_at_ignored_positions_does_not_matter() -> None:
    readout, (x, y) = head("linear"), batch()
    spoilt = x.clone()
    spoilt[y == -1] = float("nan")
    torch.testing.assert_close(cross_entropy(readout, spoilt, y), cross_entropy(readout, x, y))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite(bad: float) -> None:
    readout, (x, y) = head("linear"), batch(ignored=False)
    x[1, 4, 2] = bad
    with pytest.raises(InputRangeError, match=r"features at \(1, 4, 2\) are (nan|inf)"):
        cross_entropy(readout, x, y)


def test_a_fault_at_an_ignored_position_is_not_named() -> None:
    readout, (x, y) = head("linear"), batch(ignored=False)
    y[0, 0], x[0, 0], x[1, 4, 2] = -1, float("inf"), float("nan")
    with pytest.raises(InputRangeError, match=r"features at \(1, 4, 2\) are nan"):
        cross_entropy(readout, x, y)


@pytest.mark.parametrize(("target", "message"), [(VOCABULARY, "target 11 is outside the vocabulary of 11"), (-2, "-2")])
def test_targets_outside_the_vocabulary(target: int, message: str) -> None:
    readout, (x, y) = head("linear"), batch()
    y[1, 3] = target
    with pytest.raises(InputRangeError, match=message):
        cross_entropy(readout, x, y, chunk=2)


def test_shapes_and_types_that_do_not_fit() -> None:
    readout, (x, y) = head("linear"), batch()
    with pytest.raises(ShapeError, match="features must be"):
        cross_entropy(readout, x, y[:2])
    with pytest.raises(ShapeError, match="whole numbers"):
        cross_entropy(readout, x, y.double())
    with pytest.raises(ConfigurationError, match="chunk"):
        cross_entropy(readout, x, y, chunk=0)
    with pytest.raises(ConfigurationError, match="rank 7"):
        LowRankReadout(6, 11, 7)
    with pytest.raises(ConfigurationError, match="vocabulary"):
        LinearReadout(6, 0)


NODES, HIDDEN, CHARACTERS = 9, 4, 7


def attention_readout() -> AttentionReadout:
    torch.manual_seed(2)
    return AttentionReadout(NODES, HIDDEN, CHARACTERS).double()


def states(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).uniform(-1, 1, (*shape, NODES))


def equations(model: AttentionReadout, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Köster & Uchida 2026, eq. 3-5, for one state r (nodes,): W_att and the logits."""
    numbers = {name: p.detach().numpy() for name, p in model.named_parameters()}
    hidden = np.maximum(numbers["net.weight"] @ r + numbers["net.bias"], 0)
    W_att = np.empty((HIDDEN, NODES))
    for i in range(HIDDEN):
        for n in range(NODES):
            row = i * NODES + n
            W_att[i, n] = numbers["attention.weight"][row] @ hidden + numbers["attention.bias"][row]
    return W_att, numbers["out.weight"] @ (W_att @ r) + numbers["out.bias"]


@pytest.mark.parametrize(
    ("nodes", "hidden", "count"),
    [(75, 13, 15464), (75, 19, 31124), (100, 20, 45259), (150, 25, 102809), (160, 30, 155459)],
)
def test_counts_of_table_1(nodes: int, hidden: int, count: int) -> None:
    assert sum(p.numel() for p in AttentionReadout(nodes, hidden, 59).parameters()) == count


def test_logits_follow_the_equations() -> None:
    model, r = attention_readout(), states(2, 5)
    logits = model(torch.tensor(r)).detach().numpy()
    attention = model.attention_weights(torch.tensor(r)).detach().numpy()
    assert logits.shape == (2, 5, CHARACTERS)
    for index in np.ndindex(2, 5):
        W_att, truth = equations(model, r[index])
        np.testing.assert_allclose(attention[index], W_att, rtol=0, atol=1e-12)
        np.testing.assert_allclose(logits[index], truth, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_attention_weights_are_never_held() -> None:
    positions, chunk, nodes, hidden = 4096, 64, 75, 13
    torch.manual_seed(0)
    model = AttentionReadout(nodes, hidden, 59)
    r, y = torch.randn(positions, nodes), torch.randint(0, 59, (positions,))
    with watched() as forward, torch.no_grad():
        model(r)
    assert forward.largest // 4 <= positions * hidden * hidden < positions * hidden * nodes / 5
    with watched() as loss:
        cross_entropy(model, r, y, chunk=chunk).backward()
    assert loss.largest // 4 <= max(positions * nodes, hidden * hidden * nodes)


def test_what_attention_refuses() -> None:
    with pytest.raises(ShapeError, match=r"states must be \(\.\.\., 9\)"):
        attention_readout()(torch.zeros(2, 8, dtype=torch.float64))
    with pytest.raises(ConfigurationError, match="hidden"):
        AttentionReadout(9, 0, 7)
