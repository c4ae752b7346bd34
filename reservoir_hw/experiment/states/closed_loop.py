"""Closed loops: a reservoir whose readout's answers are its next inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported, ShapeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.readout.configuration import Readout

FAR = 1e3
"""A forecast that is so many times larger than the largest value of its warm-ups has diverged."""

_CHUNK_STEPS = 1024


def forecast(
    reservoir: Reservoir,
    readout: Readout,
    warmup: np.ndarray,
    steps: int,
    on_steps: Callable[[int], None] | None = None,
) -> np.ndarray:
    """How the readout says that several series go on: (starts, steps, outputs).

    The reservoir is reset and driven with `warmup` (starts, time, inputs), the true series up to each start. What the
    readout, trained to say u(t + 1) from u(t), answers to its last step is step 0 of the result and the next input,
    and so on; so `time + steps - 1` steps are driven for each start. `on_steps` is told of them as they are done,
    summed over the starts.

    All starts go side by side, or as many at a time as the device takes (`spec.max_batch`).

    An answer that is not finite, or `FAR` times larger than anything in the warm-ups, ends the forecast of its start:
    it and what would follow are NaN in the result. The device is then fed the last true input of that start instead, so
    that the others go on undisturbed.

    Raises
    ------
    NotSupported
        For a free-running device, before anything is driven: it does not wait for an answer.
    ConfigurationError
        If the readout has another number of outputs than the reservoir has inputs.
    InputRangeError
        If an answer leaves the input range of a device that is not configured to clip (`out_of_range: clip`).
    ShapeError
        If `warmup` is not (starts, time, inputs) with at least one step.
    """
    spec = reservoir.spec
    if spec.continuity == "free_running":
        goes_on = "its answers come late" if spec.latency_steps else "between two steps its state goes on"
        raise NotSupported(
            f"{spec.identity.vendor} {spec.identity.model} is free running: {goes_on}, so the readout's answer cannot "
            "be its next input. Forecast on a device that is held or replayed, for instance on its simulated twin."
        )
    warmup = np.asarray(warmup)
    if warmup.ndim != 3 or 0 in warmup.shape:
        raise ShapeError(f"warmup must be (starts, time, inputs), none of them 0, not {warmup.shape}")
    if steps < 1:
        raise ConfigurationError(f"a forecast has at least 1 step, not {steps}")
    size = spec.max_batch or len(warmup)
    tell = on_steps or (lambda done: None)
    groups = [warmup[first : first + size] for first in range(0, len(warmup), size)]
    return np.concatenate([_forecast(reservoir, readout, group, steps, tell) for group in groups])


def warmup_calls(steps: int) -> int:
    """How many calls drive a warm-up of so many steps."""
    return math.ceil(steps / _CHUNK_STEPS)


def _forecast(
    reservoir: Reservoir, readout: Readout, warmup: np.ndarray, steps: int, tell: Callable[[int], None]
) -> np.ndarray:
    """The forecast of as many starts as go side by side."""
    starts, time, channels = warmup.shape
    bound = FAR * float(np.abs(warmup).max() or 1.0)
    reservoir.reset(starts)
    states = np.empty(0)
    for first in range(0, time, _CHUNK_STEPS):
        chunk = warmup[:, first : first + _CHUNK_STEPS]
        states = np.array(reservoir.run(chunk)[:, -1])
        tell(starts * chunk.shape[1])
    inputs = last = warmup[:, -1]
    answers = _answers(readout, states, inputs)
    if answers.shape[1] != channels:
        raise ConfigurationError(
            f"in a closed loop the {answers.shape[1]} outputs of the readout are the next inputs, but the reservoir "
            f"takes {channels}: train it to say the next inputs"
        )
    result = np.full((starts, steps, channels), np.nan, answers.dtype)
    alive = np.ones(starts, dtype=bool)
    for step in range(steps):
        if step:
            try:
                states = _step(reservoir, inputs, step)
            except InputRangeError:
                # Of a single one nothing is left to forecast; of several nobody knows which it was.
                if starts > 1:
                    raise
                return result
            tell(starts)
            answers = _answers(readout, states, inputs)
        # Written so that NaN does not count as a small number.
        alive &= (np.abs(answers) <= bound).all(axis=1)
        result[alive, step] = answers[alive]
        inputs = np.where(alive[:, None], answers, last).astype(warmup.dtype)
    return result


def _step(reservoir: Reservoir, inputs: np.ndarray, step: int) -> np.ndarray:
    try:
        return np.asarray(reservoir.step(inputs))
    except InputRangeError as error:
        raise InputRangeError(
            f"the forecast left the input range of the device {step} steps after its start: {error}"
        ) from error


def _answers(readout: Readout, states: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """(starts, outputs) from states (starts, nodes): as one step of as many sequences."""
    given = inputs[:, None] if readout.input_connection else None
    return np.asarray(readout.predict(states[:, None], given))[:, 0]
