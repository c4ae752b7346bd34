"""The device of an experiment, which stays open from point to point while only its knobs, or draws, differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.states.device_steps import driven_on, steps_of_opening
from reservoir_hw.experiment.states.plan import plan_of
from reservoir_hw.tasks.task import Task


class OpenDevice:
    """Opens the reservoirs of points, one at a time. Used in a `with` block, at the end of which none is open.

    A knob that varies is set to the values of `Point.by_way_of` before each of its own, so that a device with
    hysteresis answers alike, whatever it was set to before. `by_way_of` has them where points do not know them. With
    `keep` it stays open behind each point, until `close` or a point with another reservoir.
    """

    def __init__(self, by_way_of: Mapping[str, tuple[float, float]] | None = None, *, keep: bool = False) -> None:
        self._by_way_of, self._keep = dict(by_way_of or {}), keep
        self._reservoir: Reservoir | None = None
        self._config: ReservoirConfig | None = None
        self.was_open = False
        """Whether it was open already for the present point."""

    @property
    def opening_steps(self) -> int:
        """Steps of the device that opening it for the present point has taken."""
        return 0 if self.was_open or self._reservoir is None else driven_on(self._reservoir).opening

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Close what is open. After an error, that is what the caller must learn: see `Reservoir.__exit__`."""
        reservoir, self._reservoir = self._reservoir, None
        if reservoir is not None:
            reservoir.__exit__(type(error), error, None)

    @contextlib.contextmanager
    def of(self, point: Point, task: Task) -> Iterator[Reservoir]:
        """The reservoir of a point, open for the inputs of its task, at the values of its knobs.

        The one that is open already is taken if it differs in its knobs alone. It is closed after an error, and at once
        where no other point could take it.
        """
        config = point.config.reservoir.for_inputs(task.channels)
        reservoir = self.opened(config)
        try:
            _check(reservoir, point, task)
            if not self.was_open:
                _pass_over_earlier_draws(reservoir, point, task)
            by_way_of = {**self._by_way_of, **point.by_way_of}
            if self.was_open or by_way_of:
                for place in (0, 1):
                    reservoir.set(**{name: values[place] for name, values in by_way_of.items()})
                reservoir.set(**config.knob_values)
            yield reservoir
        except BaseException as error:
            self.close(error)
            raise
        if not (self._keep or _stays_open(point)):
            self.close()

    def opened(self, config: ReservoirConfig) -> Reservoir:
        """The reservoir of a configuration (`for_inputs`), with a record of its own; its knobs are not set."""
        reservoir, before = self._reservoir, self._config
        same = before is not None and config.apart_from_knobs() == before.apart_from_knobs()
        self.was_open = reservoir is not None and same and config.driven_by == before.driven_by
        if reservoir is None or before is None or not self.was_open:
            self.close()
            self._reservoir = self._open(config)
            self._config = config
            return self._reservoir
        config.learn_name(before.name, before.knob_units)
        reservoir.begin_record()
        return reservoir

    def _open(self, config: ReservoirConfig) -> Reservoir:
        return build_reservoir(config).open()


def _stays_open(point: Point) -> bool:
    return bool(point.config.reservoir.knob_values) or point.config.run.draws > 1


def steps_without_opening(points: Sequence[tuple[Point, Task]]) -> list[int]:
    """For each of some points, which are driven in this order, the steps of an opening that does not take place.

    The device is open already where the point before has left it so.
    """
    saved, open_for = [], ""
    for point, task in points:
        config = point.config.reservoir
        settings = config.for_inputs(task.channels).apart_from_knobs() if _stays_open(point) else ""
        saved.append(steps_of_opening(config) if settings and settings == open_for else 0)
        open_for = settings
    return saved


def refuse_draws(config: ReservoirConfig) -> None:
    """Raise `ConfigurationError` for a reservoir that is known to answer every drive alike."""
    varies = getattr(getattr(config, "nonidealities", None), "varies", None)
    if getattr(config, "deterministic", False) or varies is False:
        raise ConfigurationError(
            f"draws: {config.name} answers every drive alike, so that several would show nothing: vary task.dataset or "
            "a seed"
        )
    if config.kind == "replay":
        raise ConfigurationError("draws: a recording holds one drive of its device")


def _check(reservoir: Reservoir, point: Point, task: Task) -> None:
    spec = reservoir.spec
    if spec.inputs != task.inputs:
        raise ConfigurationError(f"the task has {task.inputs} input channels, but the device takes {spec.inputs}")
    if point.config.run.draws > 1 and spec.deterministic:
        raise ConfigurationError(
            f"run.draws: {reservoir.name} answers every drive alike, as it declares, so that several would show nothing"
        )


def _pass_over_earlier_draws(reservoir: Reservoir, point: Point, task: Task) -> None:
    """The noise of a simulation is counted by its resets: a later draw has those of the earlier ones behind it."""
    if not reservoir.spec.identity.simulated:
        return
    counted = reservoir.counters.steps
    for burst in plan_of(point, task, max_batch=reservoir.spec.max_batch) * point.draw:
        reservoir.reset(burst.batch)
    # No draw of its own has these resets.
    reservoir.counters.steps = counted
