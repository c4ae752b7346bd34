"""The device of an experiment, which stays open from point to point while only its knobs, or draws, differ."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Self

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError, NotOpen
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.states.pace import driven_on
from reservoir_hw.experiment.states.plan import plan_of
from reservoir_hw.tasks.task import Task


class OpenDevice(contextlib.AbstractContextManager["OpenDevice"]):
    """Opens the reservoirs of points, one at a time. Used in a `with` block, at the end of which none is open.

    A knob that varies is set to the values of `Point.by_way_of` before each of its own, so that a device with
    hysteresis answers alike, whatever it was set to before. `by_way_of` has them where points do not know them.
    """

    _keep = False
    """Whether it stays open behind each point, until `close` or a point with another reservoir."""

    def __init__(self, by_way_of: Mapping[str, tuple[float, float]] | None = None) -> None:
        self._by_way_of = dict(by_way_of or {})
        self._reservoir: Reservoir | None = None
        self._config: ReservoirConfig | None = None
        self.was_open = False
        """Whether it was open already for the present point."""

    @property
    def opening_steps(self) -> int:
        """Steps of the device that opening it for the present point has taken."""
        return 0 if self.was_open or self._reservoir is None else driven_on(self._reservoir).opening

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
                turn(reservoir, config, by_way_of)
            yield reservoir
        except BaseException as error:
            self.close(error)
            raise
        if not (self._keep or _stays_open(point)):
            self.close()

    def opened(self, config: ReservoirConfig) -> Reservoir:
        """The reservoir of a configuration (`for_inputs`), with a record of its own; its knobs are not set."""
        reservoir, before = self._reservoir, self._config
        if reservoir is None or before is None or _lasting(before) != _lasting(config):
            self.close()
            self._reservoir = self._open(config)
            self._config, self.was_open = config, False
            return self._reservoir
        self.was_open = True
        config.learn_name(before.name, before.knob_units)
        reservoir.begin_record()
        return reservoir

    def _open(self, config: ReservoirConfig) -> Reservoir:
        return build_reservoir(config).open()


_SHARED: weakref.WeakSet[SharedDevice] = weakref.WeakSet()


class SharedDevice(OpenDevice):
    """The reservoir of a model and its clones: `lent` by who has it open, or opened here, one at a time.

    It stays open until `close`, until the last who shares it is forgotten, or the program ends.
    """

    _keep = True

    def __init__(self, lent: Reservoir | None) -> None:
        super().__init__()
        self.lent = lent
        self.fault = ""
        """How the device has failed."""
        self._closing: Any = None
        _SHARED.add(self)

    def opened(self, config: ReservoirConfig) -> Reservoir:
        """As it is open already. Raises `NotOpen` where a lent one is not open any more."""
        if self.lent is None:
            return super().opened(config)
        if not self.lent.is_open:
            raise NotOpen("the reservoir of this ReservoirModel was closed: open it, or give its file in its place")
        self.was_open = True
        self.lent.begin_record()
        return self.lent

    def _open(self, config: ReservoirConfig) -> Reservoir:
        """Another model that is not used now gives the same device back first."""
        reservoir = build_reservoir(config)
        for other in list(_SHARED):
            if not reservoir.in_process and other._holds(config, reservoir):
                other.close()
        self._closing = weakref.finalize(self, reservoir.close)
        return reservoir.open()

    def close(self, error: BaseException | None = None) -> None:
        """Close what was opened here."""
        if self._closing is not None:
            self._closing.detach()
        super().close(error)

    def _holds(self, config: ReservoirConfig, reservoir: Reservoir) -> bool:
        mine = self._reservoir
        if mine is None or self._config is None:
            return False
        shared = set(mine.resources) & set(reservoir.resources)
        return bool(shared) or self._config.apart_from_knobs() == config.apart_from_knobs()

    def __deepcopy__(self, memo: object) -> Self:
        return self


def turn(reservoir: Reservoir, config: ReservoirConfig, by_way_of: Mapping[str, tuple[float, float]]) -> None:
    """Bring the knobs to where the configuration wants them, from the same side every time."""
    for place in (0, 1):
        reservoir.set(**{name: values[place] for name, values in by_way_of.items()})
    reservoir.set(**config.knob_values)


def _lasting(config: ReservoirConfig) -> tuple[str, Channels | None]:
    """What an open reservoir cannot change."""
    return config.apart_from_knobs(), config.driven_with


def _stays_open(point: Point) -> bool:
    return bool(point.config.reservoir.knob_values) or point.config.run.draws > 1


def left_open(point: Point, task: Task) -> str:
    """What a point leaves a device open for: points for which this is the same text. Nothing if it closes it."""
    return point.config.reservoir.for_inputs(task.channels).apart_from_knobs() if _stays_open(point) else ""


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
