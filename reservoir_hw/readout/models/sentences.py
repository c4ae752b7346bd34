"""How probable a model finds whole sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from reservoir_hw.readout.models.evaluating import evaluating
from reservoir_hw.readout.models.token_model import TokenModel

# Logits that exist at once: 16 MiB. For larger blocks the C library asks for new memory each time, which takes as long
# as the computation.
_LOGITS = 1 << 22
_MOST = 256


def log_probabilities(
    model: TokenModel, sentences: Sequence[np.ndarray], on_tokens: Callable[[int], None] = lambda tokens: None
) -> np.ndarray:
    """Of each sentence (tokens (time,)) ln P(all tokens after the first | the first), in nats: (sentences,) float64.

    Each begins at rest. Sentences of similar length are read side by side, filled up at their end, which a causal model
    does not see. `on_tokens` is told how many were read.
    """
    order = np.argsort([len(sentence) for sentence in sentences], kind="stable")
    found = np.zeros(len(sentences))
    device = next(model.readout.parameters()).device
    first = 0
    with evaluating(model):
        while first < len(order):
            some = order[first : first + _MOST]
            fitting = max(1, _LOGITS // (model.vocabulary * len(sentences[some[-1]])))
            some = some[:fitting]
            first += len(some)
            longest = len(sentences[some[-1]])
            tokens = np.zeros((len(some), longest), np.int64)
            counted = np.zeros((len(some), longest), bool)
            for row, number in enumerate(some):
                tokens[row, : len(sentences[number])] = sentences[number]
                counted[row, : len(sentences[number])] = True
            given = torch.from_numpy(tokens).to(device)
            logits = model(given[:, :-1]).double()
            chosen = logits.log_softmax(-1).gather(-1, given[:, 1:, None])[..., 0].cpu().numpy()
            found[some] = np.where(counted[:, 1:], chosen, 0.0).sum(axis=1)
            on_tokens(int(counted.sum()))
    return found
