"""The section `sweep:` of an experiment file: what is searched, by which numbers, and when it ends."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, field_serializer, model_validator

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.passwords import without_password
from reservoir_hw.experiment.configuration.labels import called


class Dimension(Config):
    """The values that one key may take: a range of numbers, both ends included, or a list of choices."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = Field(default=False, description="search the logarithm: as much below 1e-5 as above")
    step: int | float | None = Field(default=None, description="low, low + step, ... up to high; null: any number")
    choices: Annotated[list[Any], Field(min_length=1)] | None = Field(
        default=None, description="values of any type, instead of a range; [a, b] is short for it"
    )

    @model_validator(mode="after")
    def _a_range_or_choices(self) -> Self:
        if self.choices is not None:
            if {"low", "high", "log", "step"} & self.model_fields_set:
                raise ValueError("give choices, or low and high, not both")
            if len(set(self.labels)) < len(self.labels):
                raise ValueError(f"two of the choices are the same: {', '.join(self.labels)}")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or a list of choices")
        if self.low >= self.high:
            raise ValueError(f"low is {self.low}, it must be less than high, {self.high}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log: true needs a low above 0, and no step")
        if self.step is not None:
            if self.step <= 0:
                raise ValueError(f"step is {self.step}, it must be above 0")
            # In decimals, as they are written: 0.3 is three times 0.1.
            low, high, step = (Decimal(str(number)) for number in (self.low, self.high, self.step))
            if (high - low) % step:
                raise ValueError(
                    f"steps of {step} from {low} end at {low + (high - low) // step * step}, not at {high}"
                )
        return self

    @property
    def whole(self) -> bool:
        """Whether all of it is written in whole numbers."""
        return all(isinstance(number, int) for number in (self.low, self.high, self.step) if number is not None)

    @property
    def labels(self) -> list[str]:
        """The choices as texts, for the study."""
        return [choice if isinstance(choice, str) else json.dumps(choice) for choice in self.choices or ()]

    @property
    def names(self) -> list[str]:
        """The choices as tables and figures call them."""
        return [text for one in called([{"": choice} for choice in self.choices or ()]) for text in one.values()]

    @property
    def range(self) -> tuple[float, float]:
        """Both ends of a range."""
        if self.low is None or self.high is None:
            raise ValueError("these are choices")
        return self.low, self.high

    def of_real_numbers(self) -> Dimension:
        """The same range in real numbers."""
        low, high = self.range
        return self.model_copy(update={"low": float(low), "high": float(high)})

    def extremes(self) -> list[Any]:
        """Both ends of a range, or all choices."""
        return list(self.range) if self.choices is None else self.choices

    def draw(self, random: np.random.Generator) -> Any:
        """Any of the values."""
        if self.choices is not None:
            return self.choices[random.integers(len(self.choices))]
        low, high = self.range
        if self.step is not None:
            return low + self.step * int(random.integers(round((high - low) / self.step) + 1))
        if self.log:
            value = math.exp(random.uniform(math.log(low), math.log(high)))
        else:
            value = random.uniform(low, high)
        return round(value) if self.whole else value


class SweepConfig(Config):
    """Trials of an experiment with other values of some keys, chosen by what earlier trials found."""

    metric: str = Field(description="one of the task's metrics; its mean over the grid of `vary` is what counts")
    direction: Literal["minimize", "maximize"]
    trials: PositiveInt = Field(default=50, description="in all, over all processes and however often it is continued")
    search: Annotated[dict[str, Dimension], Field(min_length=1)] = Field(
        description="dotted key -> {low, high} with log: true or step, or a list of choices"
    )
    sampler: Literal["tpe", "random"] = Field(
        default="tpe", description="tpe: learns from the trials so far (Bergstra et al. 2011); random: does not"
    )
    seed: NonNegativeInt = Field(default=0, description="of the sampler")
    pruning: Literal["none", "median"] = Field(
        default="none",
        description="median: give a trial up when its mean over the first points of `vary` is worse than the median of "
        "the earlier trials there",
    )
    stop_after_failures: PositiveInt | None = Field(
        default=10, description="failed trials in a row after which the sweep stops; null: it never does"
    )
    keep_runs: bool = Field(default=False, description="keep the run folder of every trial, without figures")
    name: str | None = Field(default=None, description="of the study; by default that of the experiment")
    storage: str | None = Field(
        default=None, description="URL of a database for Optuna; by default a SQLite file in the sweep's folder"
    )

    @field_serializer("storage")
    def _storage_for_everybody(self, storage: str | None) -> str | None:
        """Configurations are written into run folders: without the password."""
        return None if storage is None else without_password(storage)
