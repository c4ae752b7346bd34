"""How much a device will be driven, before it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, TypeVar, get_args

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.measures.comparison import REPEATS

STEPS = 80
"""Steps of a drive, if the budget allows."""

FEWEST_STEPS = 12
"""A drive must be longer than the pieces that it is cut into."""

MOST_INPUTS = 3
"""So many inputs are looked at one by one."""

SINGLE_STEPS = 100
"""Whose round trips are timed."""

TAIL_STEPS = 10_000
"""So many have a percentile of 99.9."""

DeviceSteps = Callable[["Plan"], int]
"""Gives the steps that a statement drives the device with, summed over sequences, replays and resets."""


DRIVES = "device_steps"
TestT = TypeVar("TestT", bound=Callable[..., None])


@dataclass(frozen=True)
class Plan:
    """Lengths and repeats of all drives.

    `spec` is what the device declares, but that it is not deterministic where the suite has seen so. `reset_steps` are
    those that a reset plays. `steps` is the length of a drive, `past` of what comes before it. Of `single_steps` each
    is timed. `golden_steps` is the length of the golden trace. `limited`: the device declares a range of its inputs.
    `played` says how many steps a run of so many takes.
    """

    spec: ReservoirSpec
    reset_steps: int = 0
    steps: int = STEPS
    single_steps: int = SINGLE_STEPS
    golden_steps: int = 0
    limited: bool = False
    played: Callable[[int], int] = int

    @property
    def past(self) -> int:
        """Steps of a past that a drive must not remember, or must have forgotten."""
        return max(4, self.steps // 3)

    @property
    def inputs(self) -> list[int]:
        """Those that are looked at one by one: all, or the first, the last and some between them."""
        return sorted({round(at) for at in np.linspace(0, self.spec.inputs - 1, MOST_INPUTS)})

    @property
    def repeats(self) -> int:
        """Drives under each condition."""
        return 1 if self.spec.deterministic else REPEATS

    def drive(self, *pieces: int, batch: int = 1) -> int:
        """One drive from rest in these pieces, with the reset and what is replayed before each of them."""
        if self.spec.continuity != "replayed":
            return batch * (sum(map(self.played, pieces)) + self.reset_steps)
        replays = [min(sum(pieces[:n]), self.spec.memory_steps) for n in range(len(pieces))]
        steps = sum(self.played(again + piece) for again, piece in zip(replays, pieces, strict=True))
        return batch * (steps + len(pieces) * self.reset_steps)

    def compared(self, *drives: int) -> int:
        """These drives, as often as a comparison needs them."""
        return self.repeats * sum(drives)

    def pieces(self, *first: int) -> list[int]:
        """These pieces, and what is left of a drive."""
        return [*first, self.steps - sum(first)]


def drives(device_steps: DeviceSteps) -> Callable[[TestT], TestT]:
    """Decorates a statement of the suite: how much it will drive the device."""

    def mark(test: TestT) -> TestT:
        setattr(test, DRIVES, device_steps)
        return test

    return mark


def steps_of(test: object) -> DeviceSteps:
    """What `drives` was given; nothing for a statement that does not drive the device."""
    return getattr(test, DRIVES, lambda plan: 0)


def fit(plan: Plan, statements: Sequence[DeviceSteps], budget: int) -> Plan:
    """The longest drives that stay within `budget` device steps in all.

    Repeats are never fewer: with less than `REPEATS` no p-value could be small enough. At most half of what is left
    over is for `TAIL_STEPS`. Raises `ConfigurationError` where the shortest drives are too many.
    """
    for steps in range(plan.steps, FEWEST_STEPS - 1, -1):
        fitting = replace(plan, steps=steps, single_steps=SINGLE_STEPS)
        needed = _total(fitting, statements)
        if needed <= budget:
            with_tail = replace(fitting, single_steps=TAIL_STEPS)
            return with_tail if _total(with_tail, statements) - needed <= (budget - needed) / 2 else fitting
    raise ConfigurationError(
        f"a budget of {budget:,} device steps is too small: these groups need at least "
        f"{least_steps(plan, statements):,}; raise --budget, or name fewer groups with --group"
    )


def least_steps(plan: Plan, statements: Sequence[DeviceSteps]) -> int:
    """Device steps with the shortest drives."""
    return _total(replace(plan, steps=min(plan.steps, FEWEST_STEPS), single_steps=SINGLE_STEPS), statements)


def _total(plan: Plan, statements: Sequence[DeviceSteps]) -> int:
    return sum(count(plan) for count in statements)


# ---- What can come out of a statement of the conformance suite.


Outcome = Literal["passed", "failed", "inconclusive", "unverified", "not offered", "not looked at"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Failed and inconclusive count against the device; unverified and not offered say why nobody looked. A statement is
not looked at until its test has ended."""


class Ended(Exception):
    """A statement ends here, with this outcome and for this reason."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome


def failed(reason: str) -> NoReturn:
    """The device does not do what it declares."""
    raise Ended("failed", reason)


def inconclusive(reason: str) -> NoReturn:
    """The suite cannot tell: it may be so, or the device scatters too much to see it."""
    raise Ended("inconclusive", reason)


def unverified(reason: str) -> NoReturn:
    """Nothing is declared that could be looked at, or there is no way to look."""
    raise Ended("unverified", reason)


def not_offered(reason: str) -> NoReturn:
    """The device does not have it, and says why."""
    raise Ended("not offered", reason)


@dataclass
class Statement:
    """One sentence about the device, and what was found.

    `comparisons` are those of conditions that should give the same states. `value` with the interval `low` to `high` is
    what another run is held against (`--baseline`); more is worse.
    """

    group: str
    name: str
    outcome: Outcome = "not looked at"
    text: str = ""
    device_steps: int = 0
    seconds: float = 0.0
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""

    @property
    def title(self) -> str:
        """Group and name, for people."""
        return f"{self.group}: {self.name}"

    @property
    def bad(self) -> bool:
        """Whether it counts against the device."""
        return self.outcome in ("failed", "inconclusive")
