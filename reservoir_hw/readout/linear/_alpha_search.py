"""Estimates of the error on unseen steps, as curves over alpha: (alphas, outputs), mean squared errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reservoir_hw.readout.linear._decomposition import Array, Design, Spectrum
from reservoir_hw.readout.linear._sufficient_statistics import Statistics

DEFAULT_ALPHAS = np.logspace(-8, 8, 49)


def gcv_scores(spectrum: Spectrum, alphas: Array) -> Array:
    """Generalised cross-validation (Golub, Heath & Wahba 1979, eq. 1.4): |(1 - H) y|² / n over (tr(1 - H) / n)².

    With the singular value decomposition of the design, 1 - H(alpha) is diagonal with entries
    alpha / (λ + alpha) and 1 (and 0 for the bias), so that all alphas and outputs are one matrix product.
    """
    values = spectrum.values[spectrum.resolved]
    shrinkage = alphas[:, None] / (values + alphas[:, None])
    free = max(spectrum.rows - spectrum.constants - spectrum.rank, 0)
    # Without a free row every target can be reached; what was found beyond is rounding.
    unexplained = spectrum.unexplained if free else np.zeros_like(spectrum.unexplained)
    squared_error = unexplained + shrinkage**2 @ spectrum.explained[spectrum.resolved]
    freedom = free + shrinkage.sum(axis=1, keepdims=True)
    return spectrum.rows * squared_error / freedom**2


def kfold_scores(parts: Sequence[Statistics], design_of: Callable[[Statistics], Design], alphas: Array) -> Array:
    """Each fold predicted from the others; standardisation and bias come from the others as well.

    The squared errors of all held-out rows are pooled (a longer fold counts for more).
    """
    squared_error = 0.0
    for held_out, part in enumerate(parts):
        first, *rest = (other for fold, other in enumerate(parts) if fold != held_out)
        training = first.merged(rest)
        design = design_of(training)
        weights = training.spectrum(design).weights_for_each(alphas)
        squared_error = squared_error + part.squared_error(design, weights)
    return np.asarray(squared_error / sum(part.rows for part in parts))


def choose_alpha(scores: Array, alphas: Array, *, per_output: bool) -> float | Array:
    """The alpha of the lowest score, () or (outputs,); of equal ones the largest. `alphas` ascends."""
    curve = scores if per_output else scores.mean(axis=1)
    best = alphas.size - 1 - np.argmin(curve[::-1], axis=0)
    return alphas[best] if per_output else float(alphas[best])
