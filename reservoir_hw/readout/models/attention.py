"""The attention readout: output weights that a small network computes from the state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ShapeError
from reservoir_hw.core.validation import whole_number


class AttentionReadout(nn.Module):
    """Readout of the attention-enhanced reservoir computer (Köster & Uchida 2026, eq. 3-5).

        h = ReLU(W_1 r + b_1)                      (hidden,)
        W_att = W_2 h + b_2                        (hidden × nodes), eq. 3
        r_o = W_att r                              (hidden,), eq. 4
        logits = W_out r_o + b_out                 (vocabulary,), eq. 5

    States r (..., nodes) -> logits (..., vocabulary). The equations do not print the biases; the parameter counts
    of the paper's Table I contain them: nodes·hidden + hidden, hidden²·nodes + hidden·nodes and
    hidden·vocabulary + vocabulary. All start as torch's linear layers do.

    W_att itself is never computed: eq. 3 in eq. 4 is bilinear in h and r, and summing over the nodes first needs
    hidden² numbers per position instead of hidden·nodes, with as many multiplications.

    `net`, `attention` and `out` are linear layers; row i·nodes + n of `attention` gives W_att[i, n].
    """

    def __init__(self, nodes: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.features = whole_number("nodes", nodes)
        self.hidden = whole_number("hidden", hidden)
        self.vocabulary = whole_number("vocabulary", vocabulary)
        self.net = nn.Linear(self.features, self.hidden)
        self.attention = nn.Linear(self.hidden, self.hidden * self.features)
        self.out = nn.Linear(self.hidden, self.vocabulary)

    def forward(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary) of states (..., nodes)."""
        if states.shape[-1] != self.features:
            raise ShapeError(f"states must be (..., {self.features}), not {tuple(states.shape)}")
        nodes, hidden = self.features, self.hidden
        h = self.net(states).relu()
        # W_2 as (nodes, i·hidden + k): with r it gives what each h_k contributes to each element i of r_o.
        weights = self.attention.weight.view(hidden, nodes, hidden).permute(1, 0, 2).reshape(nodes, hidden * hidden)
        contributions = (states @ weights).unflatten(-1, (hidden, hidden))
        offset = states @ self.attention.bias.view(hidden, nodes).T
        return self.out((contributions * h.unsqueeze(-2)).sum(-1) + offset)

    def emit(self, graph: Any, x: str, name: str) -> str:
        """The same as nodes of a graph (`readout.export`), the nodes summed first as in `forward`."""
        nodes, hidden = self.features, self.hidden
        h = graph.node("Relu", graph.emit(self.net, x, f"{name}.net"))
        # Rows i·hidden + k: what h_k contributes to element i of r_o; then one row per element for the biases.
        weight = self.attention.weight.view(hidden, nodes, hidden).transpose(1, 2)
        rows = torch.cat([weight.reshape(hidden * hidden, nodes), self.attention.bias.view(hidden, nodes)])
        products = graph.linear(x, f"{name}.attention", rows, None)
        sizes = graph.constant([hidden * hidden, hidden], np.int64)
        squares, offsets = graph.node("Split", products, sizes, axis=-1, outputs=2)
        matrices = graph.node("Reshape", squares, graph.constant([0, 0, hidden, hidden], np.int64))
        last = graph.constant([-1], np.int64)
        summed = graph.node("Squeeze", graph.node("MatMul", matrices, graph.node("Unsqueeze", h, last)), last)
        return graph.emit(self.out, graph.node("Add", summed, offsets), f"{name}.out")

    def attention_weights(self, states: Tensor) -> Tensor:
        """W_att of eq. 3, (..., hidden, nodes), for those who want to look at it."""
        return self.attention(torch.relu(self.net(states))).unflatten(-1, (self.hidden, self.features))


# ---- A readout of states that are normalised first.


class NormalisedReadout(nn.Module):
    """`readout(LayerNorm(x))`: the states of each step get mean 0 and variance 1, then a trained scale and shift.

    (..., features) -> (..., vocabulary), as the readout does alone.
    """

    def __init__(self, features: int, vocabulary: int, readout: nn.Module) -> None:
        super().__init__()
        self.features, self.vocabulary = features, vocabulary
        self.norm = nn.LayerNorm(features)
        self.readout = readout

    def forward(self, x: Tensor) -> Tensor:
        """Logits (..., vocabulary) of states (..., features)."""
        return self.readout(self.norm(x))

    def emit(self, graph: Any, x: str, name: str) -> str:
        """The same as nodes of a graph (`readout.export`)."""
        return graph.emit(self.readout, graph.emit(self.norm, x, f"{name}.norm"), f"{name}.readout")
