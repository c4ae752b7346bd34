"""The attention readout against the equations of its paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.readout import AttentionReadout, cross_entropy

NODES, HIDDEN, VOCABULARY = 9, 4, 7


def readout() -> AttentionReadout:
    torch.manual_seed(2)
    return AttentionReadout(NODES, HIDDEN, VOCABULARY).double()


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
    model, r = readout(), states(2, 5)
    logits = model(torch.tensor(r)).detach().numpy()
    attention = model.attention_weights(torch.tensor(r)).detach().numpy()
    assert logits.shape == (2, 5, VOCABULARY)
    for index in np.ndindex(2, 5):
        W_att, truth = equations(model, r[index])
        np.testing.assert_allclose(attention[index], W_att, rtol=0, atol=1e-12)
        np.testing.assert_allclose(logits[index], truth, rtol=0, atol=1e-12)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that was made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        made = [tensor.untyped_storage().nbytes() // 4 for tensor in (out,) if isinstance(tensor, Tensor)]
        self.elements = max([self.elements, *made])
        return out


def test_attention_weights_are_never_held() -> None:
    positions, chunk, nodes, hidden = 4096, 64, 75, 13
    torch.manual_seed(0)
    model = AttentionReadout(nodes, hidden, 59)
    r, y = torch.randn(positions, nodes), torch.randint(0, 59, (positions,))
    with Largest() as forward, torch.no_grad():
        model(r)
    assert forward.elements <= positions * hidden * hidden < positions * hidden * nodes / 5
    with Largest() as loss:
        cross_entropy(model, r, y, chunk=chunk).backward()
    assert loss.elements <= max(positions * nodes, hidden * hidden * nodes)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"states must be \(\.\.\., 9\)"):
        readout()(torch.zeros(2, 8, dtype=torch.float64))
    with pytest.raises(ConfigurationError, match="hidden"):
        AttentionReadout(9, 0, 7)
