"""What varies in a section: values that are run one after the other (`vary:`), or tried by a sweep (`search:`)."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from reservoir_hw.core.configuration import Config, Document, Location
from reservoir_hw.core.errors import ConfigurationError

Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]
Rows = list[dict[str, Any]]
Vary = Annotated[
    Annotated[Grid, Tag("grid")] | Annotated[Rows, Tag("rows")],
    Discriminator(lambda given: "rows" if isinstance(given, list) else "grid"),
]
"""A grid, {key: values}, or a list of rows, each {key: value}."""

Values = dict[str, tuple[Any, Location]]
"""The values of one point by key, and where they stand in the document."""


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
        """The choices as texts, for tables, figures and the study."""
        return [choice if isinstance(choice, str) else json.dumps(choice) for choice in self.choices or ()]

    @property
    def range(self) -> tuple[float, float]:
        """Both ends of a range."""
        if self.low is None or self.high is None:
            raise ValueError("these are choices")
        return self.low, self.high

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
        value = math.exp(random.uniform(math.log(low), math.log(high))) if self.log else random.uniform(low, high)
        return round(value) if self.whole else value


def combinations(vary: Grid | Rows, at: Location) -> Iterator[Values]:
    """The points of a `vary` that stands at a place: of a grid, the last key turns fastest."""
    if isinstance(vary, dict):
        for values in itertools.product(*vary.values()):
            yield {key: (value, (*at, key)) for key, value in zip(vary, values, strict=True)}
    else:
        for number, row in enumerate(vary):
            yield {key: (value, (*at, number, key)) for key, value in row.items()}


def expand(section: dict[str, Any]) -> None:
    """Short forms of `vary` and `search`: an axis that is null is none, `[a, b]` is `{choices: [a, b]}`."""
    for name in ("vary", "search"):
        if isinstance(axes := section.get(name), dict):
            section[name] = {key: values for key, values in axes.items() if values is not None}
    if isinstance(search := section.get("search"), dict):
        search.update({key: {"choices": values} for key, values in search.items() if isinstance(values, list)})


def refuse_vary(document: Document, at: Location = ()) -> None:
    """Raise `ConfigurationError` where a section that is to describe one reservoir varies."""
    section: Any = document.data
    for key in at:
        section = section.get(key, {})
    if vary := section.get("vary"):
        keys = ", ".join(sorted(vary if isinstance(vary, dict) else {key for row in vary for key in row}))
        raise ConfigurationError(
            f"{document.origin((*at, 'vary'))}: `vary` gives {keys} several values, and one reservoir is meant here: "
            "take `vary` out (where there is --set: --set 'reservoir.vary={}'), or name another file"
        )
