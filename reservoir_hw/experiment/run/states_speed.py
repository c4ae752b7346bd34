"""The speed of a drive whose states a readout learns from: some chunks of what a run will do, on a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.run.learning import state_readout, untrained
from reservoir_hw.experiment.run.speed import Demand, Rounds, seconds_of_a_step
from reservoir_hw.experiment.run.text_plan import gradient_of
from reservoir_hw.experiment.run.text_speed import endless
from reservoir_hw.experiment.run.trainer import Cost
from reservoir_hw.experiment.states.closed_loop import forecast
from reservoir_hw.experiment.states.drive import driven, learn, taken_by
from reservoir_hw.experiment.states.plan import plan_of
from reservoir_hw.readout.configuration import GradientReadoutConfig
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.tasks.task import Task

# Steps of all sequences in a chunk, and those of a forecast.
_CHUNK, _FORECAST = 2048, 32


def states_demand(reservoir: Reservoir, point: Point, task: Task, cost: Cost, for_s: float) -> Demand:
    """What the run of a point takes on this open simulation, measured for about `for_s`."""
    batch = min(len(task.train.inputs), reservoir.spec.max_batch or len(task.train.inputs))
    chunk_steps = min(max(1, _CHUNK // batch), point.config.run.chunk_steps)
    bursts = plan_of(point, task, chunk_steps=chunk_steps, max_batch=reservoir.spec.max_batch)
    readout = untrained(point)
    driving, learning = Rounds(for_s / 2), Rounds(for_s / 2)
    chunk, states = bursts[0].chunks[0], np.empty((0, 0, 0))
    began = time.process_time()
    for chunk, states in driven(reservoir, bursts, lambda steps: None, native=True):
        drove = time.process_time()
        driving.add(chunk.steps, drove - began)
        if chunk.split == "train" and chunk.place is not None:
            learn(readout, task, chunk, states)
            learning.add(chunk.steps, time.process_time() - drove)
        if driving.enough and learning.enough:
            break
        began = time.process_time()
    seconds = cost.device_steps * driving.seconds_for_one + _steps(task.train.inputs) * learning.seconds_for_one
    if isinstance(point.config.readout, GradientReadoutConfig):
        # What it answers afterwards takes as long as a few of its steps.
        options = gradient_of(point.config).options
        step = seconds_of_a_step(lambda told: _train(readout, endless(options), told), for_s / 2)
        return Demand(seconds + cost.training_steps * options.accumulate * step, task.test.targets.nbytes)
    began = time.process_time()
    readout.solve()
    seconds += time.process_time() - began
    began = time.process_time()
    if task.closed_loop:
        forecast(reservoir, readout, task.test.inputs, _FORECAST, lambda steps: None)
        one = (time.process_time() - began) / _FORECAST
        seconds += task.test.targets.shape[1] * one
    elif not state_readout(point.config).keeps_learning:
        readout.predict(taken_by(readout, states), chunk.inputs if readout.input_connection else None)
        seconds += _steps(task.test.inputs) * (time.process_time() - began) / (states.shape[0] * states.shape[1])
    else:
        seconds += _steps(task.test.inputs) * learning.seconds_for_one
    return Demand(seconds, task.test.targets.nbytes)


def _train(readout: Any, options: TrainingOptions, told: Callable[[float], None]) -> None:
    readout.options, readout.progress = options, lambda now: told(now.row.processor_seconds)
    readout.solve()


def _steps(inputs: np.ndarray) -> int:
    return inputs.shape[0] * inputs.shape[1]
