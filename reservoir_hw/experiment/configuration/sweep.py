"""The section `sweep:` of an experiment file: what is searched, by which numbers, and when it ends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_serializer

from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.provenance import without_password
from reservoir_hw.experiment.configuration.document import called


def choice_names(dimension: Dimension) -> list[str]:
    """The choices as tables and figures call them."""
    return [text for one in called([{"": choice} for choice in dimension.choices or ()]) for text in one.values()]


class SweepConfig(Config):
    """Trials of an experiment with other values of some keys, chosen by what earlier trials found."""

    metric: str = Field(
        default="",
        description="one of the task's metrics, by default the main one; its mean over the grid of `vary` counts",
    )
    direction: Literal["minimize", "maximize"] | None = Field(
        default=None, description="whether the metric is made small or large; by default as the task says"
    )
    trials: PositiveInt = Field(default=50, description="in all, over all processes and however often it is continued")
    search: dict[str, Dimension] = Field(
        default={},
        description="dotted key -> {low, high} with log: true or step, or a list of choices; the reservoir's stand in "
        "`reservoir.search`",
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
