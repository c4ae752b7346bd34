"""What cannot be measured, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from measures.known import delayed, random
from toys import Toy

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported, ReservoirError, ShapeError
from reservoir_hw.measures import (
    Live,
    Recorded,
    climate,
    consistency,
    coverage,
    drift,
    echo_state_index,
    effective_dimension,
    information_processing_capacity,
    kernel_rank,
    lyapunov_from_replicas,
    lyapunov_from_transition,
    lyapunov_spectrum,
    memory_capacity,
    nodes_of,
    noise_budget,
    signal_to_noise,
)

LINE = random().uniform(-1, 1, 500)
U, X = LINE[:, None], np.stack([delayed(LINE, delay) for delay in range(8)], axis=1)
WHITE = random(10).uniform(-1, 1, (3000, 1))
SLOW = np.cumsum(WHITE, axis=0)
NOISE = random(8).standard_normal((4, 100, 3))
SHORT = random(9).standard_normal((2, 30, 3))
PASTS = np.stack([0.5 ** np.arange(100.0) * past for past in range(1, 5)])[:, :, None]
SERIES = random(3).standard_normal((8, 50, 2))
STILL = np.zeros((4, 50, 1))

capacities: Any = partial(information_processing_capacity, WHITE, WHITE)
transition = partial(lyapunov_from_transition, lambda v, x: x)
spectrum = partial(lyapunov_spectrum, lambda t, x: x * np.inf)
budget = partial(noise_budget, max_delays=(8, 4))
recorded = partial(Recorded, (U, X))


def live(**settings: Any) -> Live:
    with Toy() as device:
        return Live(device, **settings)


Refused = tuple[Callable[[], Any], type[Exception], str]
REFUSED: list[Refused] = [
    (lambda: capacities(max_delays=(5, 5), input_range=(0, 1)), InputRangeError, "outside the input_range"),
    (lambda: information_processing_capacity(SLOW, WHITE, max_delays=(5,)), InputRangeError, "correlated over time"),
    (lambda: information_processing_capacity(WHITE**3, X, max_delays=(5, 5)), ShapeError, "same sequences and steps"),
    (lambda: information_processing_capacity(WHITE**3, WHITE, max_delays=(5, 5)), InputRangeError, "not uniform"),
    (lambda: information_processing_capacity(np.sign(WHITE), WHITE, max_delays=(5, 5), distribution="empirical"),
     InputRangeError, "too few different values"),
    (lambda: capacities(max_delays=(5, 5, 500)), ConfigurationError, "functions of degree 3"),
    (lambda: capacities(max_delays=(5,), distribution="odd"), ConfigurationError, "distribution"),
    (lambda: climate(np.where(np.arange(8)[:, None, None] < 6, np.nan, SERIES), SERIES), InputRangeError,
     "6 of 8 forecasts have diverged"),
    (lambda: climate(SERIES[:2], SERIES), ShapeError, "at least 4"),
    (lambda: climate(SERIES[:, :10], SERIES), ShapeError, "fit together"),
    (lambda: coverage(np.ones((3, 3)), np.ones((2, 3)), nodes=10), ConfigurationError, "there are 3 and 2"),
    (lambda: effective_dimension(np.ones((100, 3))), InputRangeError, "constant"),
    (lambda: effective_dimension(np.where(NOISE[0] > 1, np.nan, NOISE[0])), InputRangeError, "not finite"),
    (lambda: effective_dimension(NOISE[0, 0]), ShapeError, "time, nodes"),
    (lambda: effective_dimension(NOISE[0, :1]), ShapeError, "one step"),
    (lambda: effective_dimension(NOISE[0], washout=100), ConfigurationError, "100 steps"),
    (lambda: echo_state_index(PASTS, noise=5.0), InputRangeError, "too noisy"),
    (lambda: echo_state_index(PASTS[0]), ShapeError, "initial, time, nodes"),
    (lambda: echo_state_index(PASTS, tolerance=-1.0), ConfigurationError, "negative"),
    (lambda: echo_state_index(PASTS, window=0), ConfigurationError, "window is 0"),
    (lambda: lyapunov_from_replicas(np.repeat(PASTS[:1], 4, axis=0)), InputRangeError, "do not come closer"),
    (lambda: lyapunov_from_replicas(0.05 ** np.arange(9.0)[:, None] * NOISE[:, :9] + 1e-3 * NOISE[:, 9:18]),
     InputRangeError, "too fast for a slope"),
    (lambda: transition(STILL, STILL[:2, 0]), ShapeError, "4 trials and states for 2"),
    (lambda: transition(STILL, STILL[:, 0], settle=50), ConfigurationError, "settle"),
    (lambda: spectrum(np.ones((1, 2)), steps=200), InputRangeError, "diverges"),
    (lambda: spectrum(np.ones((1, 2)), steps=200, exponents=3), ConfigurationError,
     "exponents is 3, but the state has 2"),
    (lambda: spectrum(np.ones((1, 3)), steps=100), ConfigurationError, "too few"),
    (lambda: recorded().lyapunov_spectrum(), NotSupported, "can be set"),
    (lambda: budget(U[:-1], np.stack([X, X])), ShapeError, "does not fit"),
    (lambda: budget(np.cumsum(U, axis=0), np.stack([X, X]), distribution="empirical"), InputRangeError,
     "correlated over time"),
    (lambda: budget(U[:24], np.stack([X, X])[:, :24]), ShapeError, "more than twice as many steps as nodes"),
    (lambda: kernel_rank(NOISE[0, 0]), ShapeError, "sets, streams, nodes"),
    (lambda: kernel_rank(NOISE[0, :1]), ShapeError, "at least 2 streams"),
    (lambda: kernel_rank(np.where(NOISE[0] > 1, np.inf, NOISE[0])), InputRangeError, "not finite"),
    (lambda: kernel_rank(NOISE[0], noise=-1.0), ConfigurationError, "negative"),
    (lambda: kernel_rank(NOISE[0], threshold=-1.0), ConfigurationError, "threshold"),
    (lambda: drift(SHORT), ShapeError, "at least 3 segments or repeats"),
    (lambda: drift(SHORT[0]), ShapeError, "not 20 of 1"),
    (lambda: drift(SHORT[0], segments=2), ShapeError, "not 2 of 15"),
    (lambda: transition(WHITE[None], np.ones((1, 1)), size=0.0), ConfigurationError, "size is 0"),
    (lambda: spectrum(np.ones((1, 2)), steps=500, size=-1.0), ConfigurationError, "size is -1"),
    (lambda: Recorded(), ShapeError, "nothing was recorded"),
    (lambda: Recorded((U, X[:-1])), ShapeError, "same sequences and steps"),
    (lambda: recorded((U, X[:, :2])), ShapeError, "different devices"),
    (lambda: recorded(washout=500).memory_capacity(), ConfigurationError, "500 steps"),
    (lambda: recorded(max_delay=500).memory_capacity(), ConfigurationError, "500 steps"),
    (lambda: recorded().kernel_rank(), NotSupported, "as many different input sequences as nodes, 8; there are 1"),
    (lambda: recorded().generalisation_rank(), NotSupported, "similar"),
    (lambda: live(steps=0), ConfigurationError, "steps"),
    (lambda: live(washout=3), ConfigurationError, "washout"),
    (lambda: live(repeats=1), ConfigurationError, "repeats"),
    (lambda: live(input_range=(1.0, -1.0)), ConfigurationError, "input_range"),
    (lambda: Live(Toy()), ReservoirError, "not open"),
]  # fmt: skip
CAPACITIES: list[tuple[np.ndarray, np.ndarray, type[Exception], str]] = [
    (U[:50], X, ShapeError, "same sequences and steps"),
    (U, X[None, None], ShapeError, "sequences, time, nodes"),
    (np.where(U > 0.99, np.nan, U), X, InputRangeError, "inputs are not finite"),
    (U, np.where(X > 0.99, np.nan, X), InputRangeError, "not finite between the steps"),
    (np.ones_like(U), X, InputRangeError, "channel 0 never changes"),
    (U, np.full_like(X, 1e3), InputRangeError, "constant"),
    (U[:8], X[:8], ConfigurationError, "8 steps"),
    (U[:24], X[:24], ShapeError, "more than twice as many steps as nodes"),
    (U[:45], X[:45], ShapeError, "too few for an interval"),
]
for u, x, error, message in CAPACITIES:
    REFUSED.append((partial(memory_capacity, u, x, max_delay=10), error, message))
    REFUSED.append((partial(information_processing_capacity, u, x, max_delays=(10,)), error, message))
for measure in (consistency, signal_to_noise, drift):
    REFUSED += [
        (partial(measure, np.where(NOISE > 2, np.nan, NOISE)), InputRangeError, "not finite"),
        (partial(measure, np.full_like(NOISE, 0.1)), InputRangeError, "constant"),
        (partial(measure, NOISE[None]), ShapeError, "repeats, time, nodes"),
        (partial(measure, NOISE, washout=100), ConfigurationError, "washout"),
    ]
for measure in (consistency, signal_to_noise):
    REFUSED.append((partial(measure, SHORT[:1]), ShapeError, "same inputs again"))
    REFUSED.append((partial(measure, SHORT), ShapeError, "at least 40"))
for measure in (echo_state_index, lyapunov_from_replicas):
    REFUSED.append((partial(measure, np.where(PASTS > 0.5, np.nan, PASTS)), InputRangeError, "not finite"))
    REFUSED.append((partial(measure, PASTS[:1]), ShapeError, "at least 2"))
for name in ("consistency", "signal_to_noise", "echo_state_index", "lyapunov_exponent"):
    REFUSED.append((lambda name=name: getattr(recorded(), name)(), NotSupported, "no repeated drives"))
for shape in ((400, 5), (1, 400, 5), (2, 0, 5)):
    REFUSED.append((partial(nodes_of, np.zeros(shape)), ShapeError, "of two repeats or more"))


@pytest.mark.parametrize(("measure", "error", "message"), REFUSED)
def test_refused(measure: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        measure()
