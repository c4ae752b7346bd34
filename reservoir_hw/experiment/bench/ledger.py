"""What the experiments of a bench may have taken of the device, over all calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_hw.experiment.run.folder import write_json


@dataclass(frozen=True)
class Cost:
    """Of a device. `seconds` is None where no step period is declared."""

    steps: int
    seconds: float | None

    def __add__(self, other: Cost) -> Cost:
        known = self.seconds is not None and other.seconds is not None
        return Cost(self.steps + other.steps, (self.seconds or 0) + (other.seconds or 0) if known else None)


NOTHING = Cost(0, 0.0)


@dataclass(frozen=True)
class Ledger:
    """A file with a line for each experiment that was begun.

    It is written before the device is driven. So an experiment that was killed counts in full, and one that is complete
    counts once, because it is not begun again.
    """

    path: Path

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What was begun, in order: `experiment`, `steps`, `seconds`."""
        return json.loads(self.path.read_text()) if self.path.exists() else []

    @property
    def spent(self) -> Cost:
        """The sum."""
        return sum((Cost(one["steps"], one["seconds"]) for one in self.entries), NOTHING)

    def begin(self, experiment: str, cost: Cost) -> None:
        """Write down what an experiment may take at most."""
        entry = {"experiment": experiment, "steps": cost.steps, "seconds": cost.seconds}
        write_json(self.path, [*self.entries, entry])
