"""Student's distribution and the jackknife, with numpy alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's distribution for a probability of at least one half.

    With t = sqrt(degrees) tan(angle) the density is proportional to cos(angle)^(degrees - 1), which is summed up.
    """
    angle = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos(angle) ** (degrees - 1)
    upper = np.append(np.cumsum((density[1:] + density[:-1])[::-1] / 2)[::-1], 0.0)
    at = np.interp(-2 * (1 - probability), -upper / upper[0], angle)
    return float(degrees**0.5 * np.tan(at))


def half_width(values: Sequence[float] | np.ndarray) -> float:
    """Half the 95 % interval of the mean of at least two values (Student)."""
    return t_quantile(0.975, len(values) - 1) * float(np.std(values, ddof=1)) / len(values) ** 0.5


def jackknife_error(without: np.ndarray) -> float:
    """Standard error of what was found, from what is found without each of its parts (Efron 1982)."""
    parts = len(without)
    return float(((parts - 1) / parts * ((without - without.mean()) ** 2).sum()) ** 0.5)
