"""What qualifies a device for a purpose: noise budget, operating map, coverage, and the climate of its closed loop."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceError, NotSupported, ReservoirError, StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir, reservoir_config
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.spec import Counters
from reservoir_hw.experiment.configuration.experiment import Point, parse_experiment, single_point
from reservoir_hw.experiment.run.learning import trained
from reservoir_hw.experiment.states.drive import driven, forecast
from reservoir_hw.experiment.states.pace import steps_driven
from reservoir_hw.experiment.states.plan import plan_of
from reservoir_hw.measures import (
    FEWEST_SERIES,
    AtPoint,
    Climate,
    Coverage,
    Live,
    LyapunovSpectrum,
    OperatingMap,
    best_point,
    climate,
    consistency,
    coverage,
    grid_points,
    lyapunov_spectrum,
    noise_budget,
    operating_map,
)
from reservoir_hw.readout.configuration import Readout
from reservoir_hw.tasks.prediction.task import Prediction
from reservoir_hw.tasks.task import Task

QUALIFICATIONS = {
    "noise_budget": "capacity lost to noise",
    "operating_map": "capacity at the best operating point",
    "coverage": "cells of the behaviour space reached",
    "lyapunov_spectrum": "largest exponent of the Lyapunov spectrum (per step)",
    "climate": "distance of the spectra of loop and true system (dB)",
}
"""What `measure --qualify` takes, by the name of the method."""

# Half the range of the inputs is 1, its middle 0.
_AMPLITUDES = (0.1, 0.3, 0.6, 1.0)
_BIASES = (-0.5, 0.0, 0.5)
_HOLDS = (1.0, 2.0, 4.0)
_MAP_REPEATS = 3
_REFERENCES = 3
_SETTINGS = 24
_EXPONENTS = 8
_LOOP_TRIALS = 2
_FEWEST_STEPS = 100

# Of the networks that a coverage is held against, as wide as is usual in such searches.
_RADIUS, _SCALING, _LEAK = (0.1, 1.5), (0.05, 2.0), (0.1, 1.0)

_NO_LOOP = (
    "a climate is that of a closed loop: give an experiment file whose task forecasts in a closed loop "
    "(closed_loop: {}) with a readout that learns in one pass"
)


@dataclass(frozen=True)
class Loop:
    """An experiment that forecasts in a closed loop."""

    point: Point
    task: Task


@dataclass(frozen=True)
class Settings:
    """Where a device comes from, so that it can be opened with other values of its configuration.

    `document` is that of a file; `axes` are those of the operating map that were asked for, and `vary` the values of
    keys that the file varies. `loop` is there where the file is an experiment in a closed loop.
    """

    document: Document | None = None
    channels: Channels = field(default_factory=lambda: Channels(1))
    axes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    vary: Mapping[str, Sequence[float]] = field(default_factory=dict)
    loop: Loop | None = None


class Qualification(Live):
    """A device with what else is known of it: its file, and the experiment in which it is.

    `of` says that; the rest is as for `Live`. Raises `ConfigurationError` as `Live`, and for fewer than 100 steps.
    """

    def __init__(self, reservoir: Reservoir, of: Settings, **driving: Any) -> None:
        super().__init__(reservoir, **driving)
        self._of, self._driving = of, driving
        self._earlier: list[Counters] = []
        self._middle, self._half = (self._low + self._high) / 2, (self._high - self._low) / 2
        # What the device declares for axes that were asked for, else what it is driven with.
        self._limits = reservoir.known_range or (-math.inf, math.inf) if of.axes else (self._low, self._high)
        steps = driving["steps"]
        if steps < _FEWEST_STEPS:
            raise ConfigurationError(f"steps is {steps}; a qualification needs at least {_FEWEST_STEPS}")
        self._point_steps = max(min(steps, 1000), steps // 10, 8 * self.nodes)
        self._point_repeats = min(_MAP_REPEATS, driving["repeats"])
        self._loop_spectrum_steps = max(steps // 4, 500)
        self._coverage_washout = min(self.washout, 100)
        self._coverage_steps = max(min(steps, 1000), steps // 20, 8 * self.nodes)

    @property
    def counters(self) -> list[Counters]:
        """What was counted, of each opening of the device."""
        return [*self._earlier, self.reservoir.counters]

    # ---- what can be done, before anything is driven ------------------------------------------------

    def cannot(self, name: str) -> str | None:
        """Why this cannot be measured of the device, or nothing. Nothing is driven for it.

        Raises `ConfigurationError` for drives that are too short for a noise budget, an operating map beyond the range
        of the device, and impossible axes.
        """
        if name == "noise_budget" and self._budget_steps < self.fewest_steps:
            raise ConfigurationError(
                f"each drive for the noise budget has {self._budget_steps:,} steps after the washout, and {self.nodes} "
                f"nodes with these delays need at least {self.fewest_steps:,}: give more steps, or a smaller max_delay"
            )
        if name == "lyapunov_spectrum":
            return self.no_spectrum()
        if name == "operating_map":
            _ = self._map_points
        if name != "climate":
            return None
        if self._of.loop is None:
            return _NO_LOOP
        if self.reservoir.spec.continuity == "free_running":
            return "a climate is that of a closed loop, and a free-running device does not wait for an answer"
        starts = len(self._of.loop.task.test.inputs)
        if starts < FEWEST_SERIES:
            return f"a climate needs at least {FEWEST_SERIES} forecasts, and task.closed_loop.starts is {starts}"
        return None

    def planned_steps(self, names: Collection[str]) -> int:
        """Steps that will be driven, at most: the best point of a map is not known before."""
        names = [name for name in names if not self.cannot(name)]
        steps = super().planned_steps([name for name in names if name != "lyapunov_spectrum" or not self._of.loop])
        if "operating_map" in names:
            lives = (self._live_at(self.reservoir, point) for point in self._map_points)
            at_points = [live.planned_steps(["noise_budget"]) for live in lives]
            if any(self._keys_of(point) for point in self._map_points):
                steps += 2 * self.opening_steps * (len(at_points) + _REFERENCES)
            # The best point, which may be any, is measured once more.
            steps += sum(at_points) + (_REFERENCES - 1) * at_points[self._reference_number] + max(at_points)
        if "coverage" in names:
            steps += _SETTINGS * self._at_setting(self.reservoir, {}).planned_steps(
                ["kernel_rank", "generalisation_rank", "memory_capacity"]
            )
            steps += 2 * self.opening_steps * _SETTINGS if self._of.vary else 0
        if self._of.loop is not None and {"climate", "lyapunov_spectrum"} & set(names):
            steps += self._loop_steps(self._of.loop, names)
        return steps

    # ---- operating map ------------------------------------------------------------------------------

    @cached_property
    def _axes(self) -> dict[str, list[float]]:
        if self._of.axes:
            return {name: list(values) for name, values in self._of.axes.items()}
        axes: dict[str, list[float]] = {"amplitude": [self._half * part for part in _AMPLITUDES]}
        if self._of.vary:
            name, values = next(iter(self._of.vary.items()))
            axes[name] = list(values)
        else:
            axes["bias"] = [self._middle + self._half * part for part in _BIASES]
        return {**axes, "hold": list(_HOLDS)}

    @cached_property
    def _map_points(self) -> np.ndarray:
        """(points, axes).

        Raises `ConfigurationError` for unknown axes, values that cannot be, and points that were asked for beyond the
        range that the device declares.
        """
        for name, values in self._axes.items():
            if not values or not all(map(math.isfinite, values)):
                raise ConfigurationError(f"the axis {name} of the operating map is {values}: give finite numbers")
            if name not in ("amplitude", "bias", "hold") and not name.startswith("reservoir."):
                raise ConfigurationError(
                    f"the operating map has no axis {name!r}; there are amplitude, bias, hold, and keys of the "
                    "file such as reservoir.leak_rate"
                )
            if name == "hold" and not all(value == round(value) >= 1 for value in values):
                raise ConfigurationError(f"hold is {values}: inputs are held for whole device steps, at least 1")
            if name == "amplitude" and min(values) <= 0:
                raise ConfigurationError(f"amplitude is {values}; it must be more than 0")
        points = grid_points(list(self._axes.values()))
        inside = np.array([self._inside(point) for point in points])
        if self._of.axes and not inside.all():
            low, high = self._range_at(points[~inside][0])
            least, most = self._limits
            raise ConfigurationError(
                f"the operating map has a point with {self._named(points[~inside][0])}: inputs from {low:g} to "
                f"{high:g} lie beyond the range of the device, {least:g} to {most:g}. Take smaller "
                "amplitudes, or declare a larger input_range"
            )
        points = points[inside]
        keys = [place for place, name in enumerate(self._axes) if name.startswith("reservoir.")]
        if keys:
            nodes = getattr(config_with(self._of, {}), "nodes", None)
            for chosen in {tuple(point[keys]): point for point in points}.values():
                self._same_size(getattr(config_with(self._of, self._keys_of(chosen)), "nodes", None), nodes, chosen)
        return points

    def _same_size(self, nodes: int | None, own: int | None, point: np.ndarray) -> None:
        """Raise `ConfigurationError` for another number of nodes than the device's own."""
        if nodes != own:
            raise ConfigurationError(
                f"with {self._named(point)} the device has {nodes} nodes and not {own}: an operating map is that of "
                "one device, so measure each size by itself (--set)"
            )

    @property
    def _reference_number(self) -> int:
        """The point in the middle of the list."""
        return len(self._map_points) // 2

    def operating_map(self) -> OperatingMap:
        """Capacity and consistency by amplitude, bias or a key of the file, and input rate."""
        points = self._map_points
        reference = self._reference_number
        before = self._at(points[reference])
        found = [self._at(point) for point in points]
        references = [(reference, one) for one in (before, found[reference], self._at(points[reference]))]
        again = self._at(points[best_point(found)], fresh=1)
        return operating_map(tuple(self._axes), points, found, again, references)

    def _at(self, point: np.ndarray, fresh: int = 0) -> AtPoint:
        with self._set_to(self._keys_of(point)) as device:
            self._same_size(device.spec.nodes, self.nodes, point)
            live = self._live_at(device, point, fresh)
            inputs, states = live.repeated_drive()
            # Linear functions are enough: what all have together is known from the repetitions.
            budget = noise_budget(
                inputs,
                states,
                max_delays=[min(self.max_delay or 2 * self.nodes, self._point_steps // 10)],
                washout=self.washout,
                input_range=live.input_range,
            )
            return AtPoint(budget, consistency(states, washout=self.washout))

    def _live_at(self, device: Reservoir, point: np.ndarray, fresh: int = 0) -> Live:
        (low, high), (least, most) = self._range_at(point), self._limits
        return Live(
            device,
            steps=self._point_steps,
            washout=self.washout,
            repeats=self._point_repeats,
            # `_inside` forgives rounding.
            input_range=(max(low, least), min(high, most)),
            hold=round(self._value(point, "hold", 1.0)),
            seed=self._driving["seed"] + fresh,
            on_steps=self._done,
        )

    def _value(self, point: np.ndarray, axis: str, default: float) -> float:
        names = list(self._axes)
        return float(point[names.index(axis)]) if axis in names else default

    def _range_at(self, point: np.ndarray) -> tuple[float, float]:
        amplitude = self._value(point, "amplitude", self._half)
        bias = self._value(point, "bias", self._middle)
        return bias - amplitude, bias + amplitude

    def _inside(self, point: np.ndarray) -> bool:
        (low, high), (least, most) = self._range_at(point), self._limits
        room = 1e-9 * self._half
        return low >= least - room and high <= most + room

    def _keys_of(self, point: np.ndarray) -> dict[str, Any]:
        """Keys of the file with their values as they were given: a whole number stays one."""
        return {
            name: min(values, key=lambda given: abs(given - value))
            for (name, values), value in zip(self._axes.items(), point, strict=True)
            if name.startswith("reservoir.")
        }

    def _named(self, point: np.ndarray) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in zip(self._axes, point, strict=True))

    # ---- coverage -----------------------------------------------------------------------------------

    def coverage(self) -> Coverage:
        """Kernel rank, generalisation rank and memory capacity over settings, beside leaky networks of this size."""
        random = generator(self._driving["seed"], "qualification/settings")
        behaviours = []
        for _ in range(_SETTINGS):
            keys = {name: values[int(random.integers(len(values)))] for name, values in self._of.vary.items()}
            reach = self._half * math.exp(random.uniform(math.log(_AMPLITUDES[0]), 0.0))
            bias = self._middle + (self._half - reach) * random.uniform(-1, 1)
            with self._set_to(keys) as device:
                behaviours.append(_behaviour(self._at_setting(device, {"input_range": (bias - reach, bias + reach)})))
        beside = []
        for number in range(_SETTINGS):
            settings = _leaky_network(random, self.nodes, self.channels, number)
            with build_reservoir(reservoir_config(settings)) as network:
                beside.append(_behaviour(self._at_setting(network, {"input_range": (-1.0, 1.0), "on_steps": None})))
        return coverage(behaviours, beside, nodes=self.nodes)

    def _at_setting(self, device: Reservoir, more: Mapping[str, Any]) -> Live:
        options = {
            "steps": self._coverage_steps,
            "washout": self._coverage_washout,
            "sets": 1,
            "max_delay": self.max_delay and min(self.max_delay, self._coverage_steps // 10),
            "seed": self._driving["seed"],
            "on_steps": self._done,
        }
        return Live(device, **{**options, **more})

    # ---- closed loop --------------------------------------------------------------------------------

    def climate(self) -> Climate:
        """Spectra and return map of the closed loop beside those of the true system."""
        task, readout = self._trained_loop
        loop = forecast(self.reservoir, readout, task.test.inputs, task.test.targets.shape[1], self._done)
        return climate(loop, task.test.targets)

    def lyapunov_spectrum(self) -> LyapunovSpectrum:
        """That of the closed loop where the file has one, else of the driven system."""
        if reason := self.no_spectrum():
            raise NotSupported(reason)
        if self._of.loop is None:
            return super().lyapunov_spectrum()
        task, readout = self._trained_loop
        warmup = task.test.inputs[:_LOOP_TRIALS]
        nodes = self.nodes
        begin = self._drive(warmup)[:, -1]
        exponents = min(_EXPONENTS, nodes)
        if readout.input_connection:
            begin = np.concatenate([begin, warmup[:, -1]], axis=1)

        def step(t: int, states: np.ndarray) -> np.ndarray:
            inputs = states[:, None, nodes:] if readout.input_connection else None
            answers = np.asarray(readout.predict(states[:, None, :nodes], inputs))[:, 0]
            after = self.transition(answers, states[:, :nodes])
            return np.concatenate([after, answers], axis=1) if readout.input_connection else after

        known = task.lyapunov_spectrum_per_step if isinstance(task, Prediction) else ()
        steps = self._loop_spectrum_steps
        return lyapunov_spectrum(step, begin, steps=steps, exponents=exponents, settle=steps // 10, known=known)

    @cached_property
    def _trained_loop(self) -> tuple[Task, Readout]:
        """The task of the closed loop, and its readout, trained on the states of the device."""
        if self._of.loop is None:
            raise NotSupported(_NO_LOOP)
        point, task = self._of.loop.point, self._of.loop.task
        bursts = plan_of(point, task, max_batch=self.reservoir.spec.max_batch)
        return task, trained([point], task, driven(self.reservoir, bursts, self._done))[0][0]

    def _loop_steps(self, loop: Loop, names: Collection[str]) -> int:
        point, task = loop.point, loop.task
        starts, warmup = task.test.inputs.shape[:2]
        steps = steps_driven(point, task, self.reservoir.spec, forecasts="climate" in names)
        if "lyapunov_spectrum" in names:
            trials = min(_LOOP_TRIALS, starts)
            steps += self._steps_of_drive(trials, warmup)
            steps += trials * (min(_EXPONENTS, self.nodes) + 1) * self._loop_spectrum_steps
        return steps

    # ---- the device with other settings -------------------------------------------------------------

    @contextlib.contextmanager
    def _set_to(self, keys: Mapping[str, Any]) -> Iterator[Reservoir]:
        """The device, opened anew where keys of its file have other values."""
        if not keys:
            yield self.reservoir
            return
        self._earlier.append(self.reservoir.counters)
        self.reservoir.close()
        try:
            with build_reservoir(config_with(self._of, keys)) as other:
                self._earlier.append(other.counters)
                yield other
        except (DeviceError, StateLost):
            raise
        except ReservoirError:
            # This setting cannot be measured; what comes next needs the device.
            self.reservoir.open()
            raise
        self.reservoir.open()


def config_with(of: Settings, keys: Mapping[str, Any]) -> ReservoirConfig:
    """The reservoir of a file with other values. Raises `ConfigurationError` for keys that it does not have."""
    if of.document is None:
        raise ConfigurationError("keys can be varied for a file only: this reservoir is open already")
    here = Document.copy_of(of.document)
    prefix = "" if "task" in here.data else "reservoir."
    for key, value in keys.items():
        here.set(key.removeprefix(prefix), value, "the operating map")
    here.data.pop("vary", None)
    if "task" not in here.data:
        return parse_reservoir(here).for_inputs(of.channels)
    return single_point(parse_experiment(here)).config.reservoir.for_inputs(of.channels)


def _behaviour(live: Live) -> list[float]:
    return [live.kernel_rank().value, live.generalisation_rank().value, live.memory_capacity().value]


def _leaky_network(random: np.random.Generator, nodes: int, inputs: int, seed: int) -> dict[str, Any]:
    low, high = _SCALING
    return {
        "kind": "esn",
        "nodes": nodes,
        "inputs": inputs,
        "spectral_radius": float(random.uniform(*_RADIUS)),
        "input_scaling": float(math.exp(random.uniform(math.log(low), math.log(high)))),
        "leak_rate": float(random.uniform(*_LEAK)),
        "seed": seed,
    }
