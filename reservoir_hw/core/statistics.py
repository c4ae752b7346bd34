"""Student's distribution, with numpy alone."""

from __future__ import annotations

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
