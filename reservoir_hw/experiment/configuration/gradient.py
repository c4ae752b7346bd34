"""The section `training.gradient`: how a language model, or a classifier of sequences, is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from reservoir_hw.readout.training.options import PRESETS, TrainingOptions


class GradientConfig(TrainingOptions):
    """`TrainingOptions`, on top of those of a paper, and what becomes of states that are computed beforehand."""

    paper: Literal["aerc", "laerc", "esn", "esn+i"] | None = Field(
        default=None, description="begin with what this paper trains with; the other keys go over it"
    )
    shards: PositiveInt | None = Field(
        default=None, description="precomputed states: parts, one of which is held in memory; null: parts of 1 GiB"
    )
    keep_states: bool = Field(
        default=False, description="keep precomputed states in the run folder: what is resumed drives no device again"
    )

    @model_validator(mode="before")
    @classmethod
    def _begin_with_the_paper(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # Behind a validator like this one, strict validation wants the tuple that JSON does not have.
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        paper = PRESETS.get(str(given.get("paper")), {})
        if given.get("steps") is not None:
            paper = {key: value for key, value in paper.items() if key != "epochs"}
        return {**paper, **given}

    @classmethod
    def for_model(cls, shared: Self | None, own: Mapping[str, Any]) -> Self:
        """The settings of the experiment, and over them those that a model has of its own, with its own paper.

        Raises `ConfigurationError` where they do not make a training.
        """
        own = {**PRESETS.get(str(own.get("paper")), {}), **own}
        given = {} if shared is None else shared.model_dump(exclude_unset=True)
        if own.keys() & {"steps", "epochs"}:
            given = {key: value for key, value in given.items() if key not in ("steps", "epochs")}
        return cls(**{**given, **own})

    @property
    def options(self) -> TrainingOptions:
        """What the training itself is told."""
        return TrainingOptions(**{name: getattr(self, name) for name in TrainingOptions.model_fields})
