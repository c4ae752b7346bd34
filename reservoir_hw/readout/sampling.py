"""How the next token is drawn from logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import number_in, whole_number


class Sampler:
    """Draws tokens from logits; the same seed and logits give the same tokens, with and without torch.

    `temperature` divides the logits, 0 takes the most likely token. `top_k` keeps the k most likely ones, then
    `top_p` the fewest whose probability reaches p (nucleus sampling, Holtzman et al. 2020). Raises ConfigurationError
    for values that mean nothing.
    """

    def __init__(self, temperature: Any, top_k: Any, top_p: Any, seed: Any) -> None:
        self.temperature = number_in("temperature", temperature, 0.0, math.inf)
        self.top_k = None if top_k is None else whole_number("top_k", top_k)
        self.top_p = None if top_p is None else number_in("top_p", top_p, 0.0, 1.0, excluding=(0.0,))
        self._random = generator(whole_number("seed", seed, least=0), "tokens")

    def probabilities(self, logits: Any) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities and the tokens they belong to, of logits (vocabulary,); in descending order if limited."""
        values = arrays.to_numpy(logits, np.dtype(np.float64), "logits")
        highest = float(values.max())
        if not math.isfinite(highest):
            raise InputRangeError(
                "the logits of the next token are not finite: the weights or the states are broken; check the "
                "training's loss and the file the weights came from"
            )
        if self.temperature == 0:
            return np.ones(1), np.array([values.argmax()])
        tokens = self._most_likely(values)
        # Relative to the highest: a tiny temperature must not overflow.
        powers = np.exp((values[tokens] - highest) / self.temperature)
        probabilities = powers / powers.sum()
        if self.top_p is not None and self.top_p < 1:
            before = probabilities.cumsum() - probabilities
            fewest = int((before < self.top_p).sum())
            probabilities, tokens = probabilities[:fewest], tokens[:fewest]
            probabilities = probabilities / probabilities.sum()
        return probabilities, tokens

    def __call__(self, logits: Any) -> int:
        """One token of logits (vocabulary,)."""
        probabilities, tokens = self.probabilities(logits)
        if len(tokens) == 1:
            return int(tokens[0])
        place = int(np.searchsorted(probabilities.cumsum(), self._random.random(), side="right"))
        return int(tokens[min(place, len(tokens) - 1)])

    def _most_likely(self, values: np.ndarray) -> np.ndarray:
        """The tokens that may be drawn: all of them as they come, or the most likely in descending order."""
        count = len(values) if self.top_k is None else min(self.top_k, len(values))
        if count == len(values) and self.top_p in (None, 1.0):
            return np.arange(len(values))
        candidates = np.arange(len(values)) if count == len(values) else np.argpartition(-values, count - 1)[:count]
        return candidates[np.argsort(-values[candidates], kind="stable")]
