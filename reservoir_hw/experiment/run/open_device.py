"""The device of an experiment, which stays open from point to point while only its knobs, or draws, differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Self

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.states.plan import plan_of
from reservoir_hw.tasks.task import Task


class OpenDevice:
    """Opens the reservoirs of points, one at a time. Used in a `with` block, at the end of which none is open."""

    def __init__(self) -> None:
        self._reservoir: Reservoir | None = None
        self._settings = ""

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
        stays = bool(config.knob_values) or point.config.run.draws > 1
        settings = config.apart_from_knobs()
        reservoir = self._reservoir
        if reservoir is None or settings != self._settings:
            self.close()
            reservoir = self._reservoir = build_reservoir(config).open()
            self._settings = settings
            begins = True
        else:
            begins = False
        try:
            if begins:
                _check(reservoir, point, task)
                _pass_over_earlier_draws(reservoir, point, task)
            else:
                reservoir.begin_record()
                reservoir.set(**config.knob_values)
            yield reservoir
        except BaseException as error:
            self.close(error)
            raise
        if not stays:
            self.close()


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
    for burst in plan_of(point, task, max_batch=reservoir.spec.max_batch) * point.draw:
        reservoir.reset(burst.batch)
