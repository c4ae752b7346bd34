"""How much of what a model writes stands in a text (Köster & Uchida 2026, eq. 8)."""

from __future__ import annotations

import numpy as np

from reservoir_hw.core.errors import ShapeError


def ngram_overlap(written: np.ndarray, reference: np.ndarray, n: int) -> float:
    """|G ∩ R| / |G|: of the different n-grams of tokens `written` (time,), the share that `reference` (time,) has.

    Raises `ShapeError` where one of them is shorter than n.
    """
    if min(len(written), len(reference)) < n:
        raise ShapeError(f"{n}-grams need at least {n} tokens; there are {len(written)}, and {len(reference)} to find")
    found = np.unique(_ngrams(written, n))
    return float(np.isin(found, _ngrams(reference, n)).mean())


def _ngrams(tokens: np.ndarray, n: int) -> np.ndarray:
    """Every run of n tokens as one item of bytes, (time - n + 1,)."""
    runs = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, dtype=np.int32), n)
    return np.ascontiguousarray(runs).view(f"V{4 * n}").ravel()
