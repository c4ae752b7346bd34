"""How the next token is drawn from logits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from reservoir_hw.errors import InputRangeError
from reservoir_hw.readout._checks import number_in, whole_number


class Sampler:
    """Draws tokens from logits; the same seed and logits give the same tokens.

    `temperature` divides the logits, 0 takes the most likely token. `top_k` keeps the k most likely ones, then
    `top_p` the fewest whose probability reaches p (nucleus sampling, Holtzman et al. 2020). Numbers are drawn
    on the CPU from a generator of its own. Raises ConfigurationError for values that mean nothing.
    """

    def __init__(self, temperature: Any, top_k: Any, top_p: Any, seed: Any) -> None:
        self.temperature = number_in("temperature", temperature, 0.0, math.inf)
        self.top_k = None if top_k is None else whole_number("top_k", top_k)
        self.top_p = None if top_p is None else number_in("top_p", top_p, 0.0, 1.0, excluding=(0.0,))
        self._generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))

    def probabilities(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities in descending order and the tokens they belong to, of logits (vocabulary,)."""
        logits = logits.detach().cpu().double()
        if bool(logits.isnan().any()) or not math.isfinite(highest := float(logits.max())):
            raise InputRangeError(
                "the logits of the next token are not finite: the weights or the states are broken; check the "
                "training's loss and the file the weights came from"
            )
        # Relative to the highest: a tiny temperature must not overflow.
        scaled = logits - highest if self.temperature == 0 else (logits - highest) / self.temperature
        count = len(logits) if self.top_k is None else min(self.top_k, len(logits))
        kept, tokens = scaled.topk(1 if self.temperature == 0 else count)
        probabilities = kept.softmax(0)
        if self.top_p is not None and self.top_p < 1:
            before = probabilities.cumsum(0) - probabilities
            fewest = int((before < self.top_p).sum())
            probabilities, tokens = probabilities[:fewest], tokens[:fewest]
            probabilities = probabilities / probabilities.sum()
        return probabilities, tokens

    def __call__(self, logits: Tensor) -> int:
        """One token of logits (vocabulary,)."""
        probabilities, tokens = self.probabilities(logits)
        if len(tokens) == 1:
            return int(tokens[0])
        return int(tokens[torch.multinomial(probabilities, 1, generator=self._generator)])
