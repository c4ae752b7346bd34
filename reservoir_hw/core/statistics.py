"""Student's distribution, the jackknife, and the line of a scaling law, with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator


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


@dataclass(frozen=True)
class LogFit:
    """A line, loss = slope · log10 N + intercept, with 95 % intervals of both."""

    slope: float
    intercept: float
    slope_interval: tuple[float, float]
    intercept_interval: tuple[float, float]

    def at(self, sizes: Sequence[float] | np.ndarray) -> np.ndarray:
        """The loss at these N."""
        return self.slope * np.log10(sizes) + self.intercept


def fit_log10(losses: Mapping[int, Sequence[float]], *, resamples: int = 10_000, seed: int = 0) -> LogFit:
    """Least-squares line of losses over the logarithm of a size (Köster & Uchida 2026, eq. 9).

    `losses` has the losses of all runs for each size N, such as the number of trained weights. The intervals are those
    of a percentile bootstrap: the runs of each N are drawn anew, with replacement. They hold the chance in the runs,
    and nothing of how well a line fits. Of few runs they are too narrow, of three by a factor of about √(2/3).

    Raises `ConfigurationError` if there are not two sizes.
    """
    if len(losses) < 2:
        raise ConfigurationError(f"a line needs losses at two sizes or more, and there are {len(losses)}")
    x = np.log10([size for size, runs in losses.items() for _ in runs])
    y = np.concatenate(list(losses.values()))
    random = generator(seed, "bootstrap of a fit")
    drawn = np.concatenate([random.choice(runs, (resamples, len(runs))) for runs in losses.values()], axis=1)
    solution = np.linalg.pinv(np.stack([x, np.ones_like(x)]).T)
    slope, intercept = (solution @ y).tolist()
    slopes, intercepts = np.quantile(drawn @ solution.T, [0.025, 0.975], axis=0).T.tolist()
    return LogFit(slope, intercept, tuple(slopes), tuple(intercepts))
