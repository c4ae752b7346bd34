"""What a caller from Python brings to a training: an optimizer, a schedule, an evaluation, a logger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import nn
from torch.optim import Optimizer

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.training.options import TrainingOptions

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
"""Of the trainable parameters."""

Schedule = Callable[[int, int], float]
"""step (from 0), steps -> factor on the learning rate that each group of the optimizer was made with."""

Evaluate = Callable[[Any, int], Mapping[str, float]]
"""model, steps done -> metrics by name."""

OnRow = Callable[[int, Any, Mapping[str, float]], None]
"""steps done, model, what the row of the history says: `Row.numbers`."""

_OF_ADAMW = ("learning_rate", "embedding_rate", "betas", "weight_decay", "decay")
_OF_THE_SCHEDULE = ("warmup", "hold", "final_rate")


@dataclass(frozen=True)
class Hooks:
    """`model` is what `evaluate` and `on_row` are given."""

    model: Any
    optimizer: MakeOptimizer | None = None
    schedule: Schedule | None = None
    evaluate: Evaluate | None = None
    on_row: OnRow | None = None

    def check(self, options: TrainingOptions) -> None:
        """Raise `ConfigurationError` where an option would have no effect."""
        for name, given, options_of_it in (
            ("optimizer", self.optimizer, _OF_ADAMW),
            ("schedule", self.schedule, _OF_THE_SCHEDULE),
        ):
            fields = type(options).model_fields
            idle = [one for one in options_of_it if getattr(options, one) != fields[one].default]
            if given is not None and idle:
                raise ConfigurationError(
                    f"options.{idle[0]} has no effect beside {name}=, which says that itself: leave one of them out"
                )

    def factor(self, options: TrainingOptions, step: int, steps: int) -> float:
        """On the learning rate in `step` (from 0) of `steps`."""
        if self.schedule is None:
            return options.rate_factor(step, steps)
        factor = self.schedule(step, steps)
        if not isinstance(factor, Real) or not math.isfinite(factor) or factor < 0:
            raise ConfigurationError(
                f"schedule({step}, {steps}) gave {factor!r}; a factor on the learning rate is a number from 0"
            )
        return float(factor)

    def metrics(self, step: int) -> dict[str, float]:
        """Those of `evaluate`, or none."""
        if self.evaluate is None:
            return {}
        found = self.evaluate(self.model, step)
        if not isinstance(found, Mapping):
            raise ConfigurationError(f"evaluate(model, {step}) gave {found!r}; a mapping of metrics is needed")
        return {str(name): float(value) for name, value in found.items()}
