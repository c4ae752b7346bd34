"""What can come out of a statement of the conformance suite."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn, get_args

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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
