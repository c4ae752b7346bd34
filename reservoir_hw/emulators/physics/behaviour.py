"""What a device under test does, as one would try it out on a bench before one measures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.emulators.physics.devices import STEPS_PER_TAU, Array, Model

# Levels that are played, and how long one waits at most until the past is forgotten, in levels, too.
_LEVELS = 5000
_LONGEST_MEMORY = 20_000


@dataclass(frozen=True)
class Behaviour:
    """`range_v` is what the output reaches; after `memory_s` it makes no difference above the noise what was before."""

    range_v: tuple[float, float]
    memory_s: float


def behaviour(device: Model, low_v: float, rest_v: float, high_v: float, level_s: float) -> Behaviour:
    """Of a device that is driven with random levels from `low_v` to `high_v`, each for `level_s`, or rests at `rest_v`.

    What was before are such levels, or 0 V.
    Raises `ConfigurationError` for a device that does not forget.
    """
    dt_s = level_s / max(10, round(STEPS_PER_TAU * level_s / device.tau_s))
    held = round(level_s / dt_s)
    random = generator(0, "behaviour of a device")

    def follow(levels: Array) -> Array:
        volts = np.repeat(np.concatenate([levels, np.full(_LONGEST_MEMORY, rest_v)]), held)
        return device.at_output(device.respond(volts, dt_s, device.start(dt_s))[0], dt_s)

    first, *others = (follow(levels) for levels in (*random.uniform(low_v, high_v, (2, _LEVELS)), np.zeros(_LEVELS)))
    answer = first[: _LEVELS * held]
    range_v = float(answer.min()), float(answer.max())
    smallest = max(device.noise_v, 1e-4 * (range_v[1] - range_v[0]))
    differs = np.any([np.abs(first - other)[_LEVELS * held :] > smallest for other in others], axis=0)
    if differs[-1]:
        raise ConfigurationError(
            f"the device under test ({device.kind}) does not forget its past within {_LONGEST_MEMORY * level_s:g} s "
            "of rest: it cannot be a reservoir; reduce its feedback_gain"
        )
    return Behaviour(range_v, float(np.flatnonzero(differs)[-1] + 1) * dt_s if differs.any() else 0.0)
