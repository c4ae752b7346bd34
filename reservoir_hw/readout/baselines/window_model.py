"""Language models that see the last tokens of a text, and nothing before them."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from reservoir_hw.core.validation import whole_number
from reservoir_hw.readout.models.token_model import TokenModel, check_tokens

# Windows that are encoded at once where every position has one of its own.
_WINDOWS = 512


class WindowModel(TokenModel):
    """A model writes `encode`, and sets `embedding` and `readout`.

    What a position's features are depends on the last `context` tokens alone, numbered from the first of them. As long
    as a text is no longer than that, one pass gives all positions (`causal`); beyond, and without a mask everywhere,
    each position is the last of a window of its own, which takes a pass for each.
    """

    embedding: nn.Embedding

    def __init__(self, vocabulary: int, context: int, *, causal: bool = True) -> None:
        super().__init__(vocabulary)
        self.context = whole_number("context", context)
        self.causal = bool(causal)
        self._past: Tensor | None = None

    @abstractmethod
    def encode(self, windows: Tensor) -> Tensor:
        """One pass over windows (batch, time) of at most `context` tokens: (batch, time, width)."""

    def begin(self, batch: int = 1) -> None:
        """No tokens yet."""
        del batch
        self._past = None

    def advance(self, tokens: Tensor) -> Tensor:
        """Features (batch, time, width)."""
        text = tokens if self._past is None else torch.cat([self._past, tokens], 1)
        done, steps = text.shape[1] - tokens.shape[1], tokens.shape[1]
        # Positions up to here are seen from the start of what is kept.
        short = min(self.context, text.shape[1]) - done
        if self.causal:
            parts = [self.encode(text[:, : done + short])[:, done:]]
        else:
            parts = [self.encode(text[:, : done + step + 1])[:, -1:] for step in range(short)]
        if steps > short:
            parts.append(self._encode_each(text[:, 1:].unfold(1, self.context, 1)))
        # What is left of a text that is longer still gives one window: the kept tokens and the next.
        self._past = text[:, -(self.context - 1) :] if self.context > 1 else text[:, :0]
        return torch.cat(parts, 1) if parts else self.embedding(tokens)

    def last_features(self, tokens: Tensor) -> Tensor:
        """As `TokenModel.last_features`; one pass over texts that are no longer than the context."""
        if not 0 < tokens.shape[-1] <= self.context:
            return super().last_features(tokens)
        return self.encode(check_tokens(tokens, self.vocabulary))[:, -1]

    def _encode_each(self, windows: Tensor) -> Tensor:
        """The last position of each of windows (batch, windows, context): (batch, windows, width)."""
        batch, number = windows.shape[:2]
        flat = windows.reshape(-1, self.context)
        parts = [self.encode(part)[:, -1] for part in flat.split(_WINDOWS)]
        return torch.cat(parts).reshape(batch, number, -1)
