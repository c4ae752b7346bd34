"""Softmax and attention readouts, and their cross-entropy without the logits of a whole batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy as dense_cross_entropy

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.validation import whole_number

IGNORED = -1
"""The target of a position that does not count."""

# At most 2^22 logits at once: 16 MiB in float32. From 32 MiB on, glibc returns memory to the system after each use,
# which doubles the time on a CPU.
_LOGITS = 1 << 22
# A chunk has 128 to 4096 positions, also where 128 have more logits than that.
_FEWEST, _MOST = 128, 4096


class LinearReadout(nn.Linear):
    """Logits W x + b (Köster & Uchida 2026, eq. 2; Ueda et al. 2025, eq. 1): (..., features) -> (..., vocabulary).

    Weights and bias start uniform within ±1/√features.
    """

    def __init__(self, features: int, vocabulary: int, bias: bool = True) -> None:
        super().__init__(whole_number("features", features), whole_number("vocabulary", vocabulary), bias=bias)
        self.features = self.in_features
        self.vocabulary = self.out_features

    def emit(self, graph: Any, x: str, name: str) -> str:
        """The same as nodes of a graph (`readout.export`)."""
        return graph.linear(x, name, self.weight, self.bias)

    def matrices(self) -> tuple[Tensor, None, Tensor | None]:
        """W, None and b: y = W x + b, for a C header."""
        return self.weight, None, self.bias


class LowRankReadout(nn.Module):
    """Logits A (B x) + b (Ueda et al. 2025, section 2.1): (..., features) -> (..., vocabulary).

    `A` (vocabulary × rank) and `B` (rank × features) take (vocabulary + features) · rank weights instead of
    vocabulary · features. B starts uniform within ±1/√features, A and b within ±1/√rank (the paper's
    footnote 1).
    """

    def __init__(self, features: int, vocabulary: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.features = whole_number("features", features)
        self.vocabulary = whole_number("vocabulary", vocabulary)
        self.rank = whole_number("rank", rank)
        if self.rank > min(self.features, self.vocabulary):
            raise ConfigurationError(
                f"rank {rank} is more than a matrix {vocabulary} × {features} can have: choose at most "
                f"{min(self.features, self.vocabulary)}, or a LinearReadout"
            )
        self.B = nn.Linear(self.features, self.rank, bias=False)
        self.A = nn.Linear(self.rank, self.vocabulary, bias=bias)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (..., vocabulary) of features (..., features)."""
        return self.A(self.B(features))

    def emit(self, graph: Any, x: str, name: str) -> str:
        """The same as nodes of a graph (`readout.export`)."""
        return graph.emit(self.A, graph.emit(self.B, x, f"{name}.B"), f"{name}.A")

    def matrices(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """B, A and b: y = A (B x) + b, for a C header."""
        return self.B.weight, self.A.weight, self.A.bias


def cross_entropy(readout: nn.Module, features: Tensor, targets: Tensor, *, chunk: int | None = None) -> Tensor:
    """Mean cross-entropy in nats of softmax(readout(features)), computed chunk by chunk.

    `features` (..., features) and `targets` (...) of class numbers; targets of -1 are not counted, and if none
    counts the loss is 0. The logits exist for `chunk` positions at a time: with more positions than that the
    gradients are computed chunk by chunk already in the forward pass, and the backward pass scales them. By default
    a chunk is what fits 16 MiB of float32 logits, but 128 to 4096 positions.

    `readout` is any module that treats positions independently. Its trainable tensors must be among its
    `parameters()`: a weight tied to another module's is registered in both. Gradients of gradients are not
    available across chunks. Autocast is obeyed; softmax and loss are computed in float32 (float64 for float64
    logits).

    Raises `ShapeError` where the shapes do not fit, and `InputRangeError` for targets outside the vocabulary, and
    where features that are not finite make the loss so. With more than one chunk, it raises `ConfigurationError` for a
    readout with trainable tensors outside its `parameters()`.
    """
    if features.ndim < 1 or features.shape[:-1] != targets.shape:
        raise ShapeError(
            f"features must be (..., features) and targets (...), not {tuple(features.shape)} and "
            f"{tuple(targets.shape)}"
        )
    if targets.is_floating_point() or targets.dtype == torch.bool or targets.is_complex():
        raise ShapeError(f"targets must be whole numbers, the numbers of the classes, not {targets.dtype}")
    size = _chunk_for(readout) if chunk is None else whole_number("chunk", chunk)
    flat, classes = features.reshape(-1, features.shape[-1]), targets.reshape(-1).long()
    lowest, highest = (int(limit) for limit in classes.aminmax()) if len(classes) else (0, 0)
    if lowest < IGNORED:
        raise InputRangeError(f"target {lowest} is no class: classes count from 0, and {IGNORED} is not counted")
    if lowest == IGNORED:
        counted = classes != IGNORED
        flat, classes = flat[counted], classes[counted]
    parameters = [parameter for parameter in readout.parameters() if parameter.requires_grad]
    if len(flat) > size and torch.is_grad_enabled() and (flat.requires_grad or parameters):
        loss: Tensor = _ChunkedCrossEntropy.apply(readout, size, highest, classes, flat, *parameters)  # type: ignore[assignment]
    else:
        parts = ((flat[part], classes[part]) for part in _parts(len(flat), size))
        loss = torch.stack([_summed(readout(x), y, highest) for x, y in parts]).sum() / max(1, len(flat))
    if not bool(loss.isfinite()) and not bool(flat.isfinite().all()):
        counted = (targets.long() != IGNORED).unsqueeze(-1)
        index = torch.nonzero(~features.isfinite() & counted)[0].tolist()
        raise InputRangeError(
            f"features at {tuple(index)} are {float(features.detach()[tuple(index)])}: a state or an activation is "
            "not finite; look at what produced it (a diverging simulation, a broken channel, too high a learning rate)"
        )
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes loss and gradients together, so that no chunk's logits outlive it."""

    @staticmethod
    def forward(
        ctx: Any, readout: nn.Module, size: int, highest: int, classes: Tensor, flat: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.count = len(flat)
        of_features = torch.zeros_like(flat) if ctx.needs_input_grad[4] else None
        of_parameters = [torch.zeros_like(parameter) for parameter in parameters]
        losses = []
        for part in _parts(len(flat), size):
            with torch.enable_grad():
                x = flat[part].detach().requires_grad_(of_features is not None)
                loss = _summed(readout(x), classes[part], highest)
                wanted = [*parameters] if of_features is None else [x, *parameters]
                if part.start == 0:
                    _refuse_foreign(loss, wanted)
                gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True))
            losses.append(loss.detach())
            if of_features is not None:
                of_x = gradients.pop(0)
                if of_x is not None:
                    of_features[part] = of_x
            for total, gradient in zip(of_parameters, gradients, strict=True):
                if gradient is not None:
                    total += gradient
        ctx.save_for_backward(of_features, *of_parameters)
        return torch.stack(losses).sum() / len(flat)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # type: ignore[override]
        # Divided by the number of positions here, not before: in half precision small gradients would vanish.
        scale = gradients[0] / ctx.count
        scaled = [None if saved is None else saved * scale.to(saved.dtype) for saved in ctx.saved_tensors]
        return None, None, None, None, *scaled


def _summed(logits: Tensor, classes: Tensor, highest: int) -> Tensor:
    vocabulary = logits.shape[-1]
    if highest >= vocabulary:
        raise InputRangeError(
            f"target {highest} is outside the vocabulary of {vocabulary} (0 to {vocabulary - 1}): were the targets "
            "made with another tokenizer?"
        )
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return dense_cross_entropy(exact, classes, reduction="sum")


def _parts(length: int, size: int) -> Iterator[slice]:
    # Without positions there is still one empty part. Its loss of 0 stays connected to the readout, so `backward`
    # works.
    return (slice(first, first + size) for first in range(0, max(length, 1), size))


def _chunk_for(readout: nn.Module) -> int:
    vocabulary = getattr(readout, "vocabulary", None) or getattr(readout, "out_features", None)
    return max(_FEWEST, min(_MOST, _LOGITS // vocabulary)) if isinstance(vocabulary, int) else _FEWEST


def _refuse_foreign(loss: Tensor, known: Iterable[Tensor]) -> None:
    """Raise if a trainable tensor takes part that would silently get no gradient."""
    expected = {id(tensor) for tensor in known}
    pending: list[Any] = [loss.grad_fn]
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in expected:
            raise ConfigurationError(
                f"the readout uses a trainable tensor {tuple(variable.shape)} that is not among its parameters(), so "
                "it would get no gradient: register it in the readout (a tied weight is registered in both modules)"
            )
        pending += [following for following, _ in node.next_functions]


# ---- The attention readout: output weights that a small network computes from the state.


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
