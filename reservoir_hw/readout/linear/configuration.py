"""Linear readouts as an experiment file names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.configuration import Readout, StateReadoutConfig


class RidgeConfig(StateReadoutConfig):
    """Ridge regression, learned in one pass over the states."""

    kind: Literal["ridge"]
    alpha: NonNegativeFloat | list[NonNegativeFloat] | Literal["gcv", "kfold"] = Field(
        default=1e-6, description="the penalty, one for each output, or how to find it"
    )
    solver: Literal["normal", "qr"] = Field(default="normal", description="qr is slower and accurate at a tiny alpha")
    standardise: bool = Field(default=True, description="the penalty acts on standardised states")
    bias: bool = True
    input_connection: bool = Field(default=False, description="the readout sees the inputs too")
    washout: NonNegativeInt = Field(default=0, description="leading steps of each sequence that are not learned")
    alphas: Annotated[list[PositiveFloat], Field(min_length=1)] | None = Field(
        default=None, description="grid for the searches"
    )
    per_output: bool = Field(default=False, description="the searches choose an alpha for each output")
    folds: Annotated[int, Field(ge=2)] = 5
    block_steps: PositiveInt = Field(default=100, description="kfold: consecutive steps that stay together")

    def check_outputs(self, outputs: int) -> None:
        """A list of alphas needs one for each output."""
        if isinstance(self.alpha, list) and len(self.alpha) != outputs:
            raise ConfigurationError(f"alpha has {len(self.alpha)} values, the task has {outputs} outputs")

    def check_targets(self, targets: np.ndarray) -> None:
        """Targets that are not known from the first step on need a washout."""
        _check_known(targets, self.washout)

    def build(self) -> Readout:
        """A `RidgeReadout` with these settings."""
        from reservoir_hw.readout.linear.ridge import RidgeReadout

        return RidgeReadout(**self.model_dump(exclude={"kind"}))


class OnlineConfig(StateReadoutConfig):
    """What the readouts that learn with every step can be told."""

    standardise: bool = Field(default=True, description="the rule acts on standardised states")
    standardise_steps: Annotated[int, Field(ge=2)] = Field(
        default=100, description="first steps that the standardisation goes by"
    )
    bias: bool = True
    input_connection: bool = Field(default=False, description="the readout sees the inputs too")
    washout: NonNegativeInt = Field(default=0, description="leading steps of each sequence that are not learned")
    keep_learning: bool = Field(
        default=False, description="in the test too: each step is answered first, then its target is learned"
    )

    @property
    def keeps_learning(self) -> bool:
        """As configured."""
        return self.keep_learning

    def check_targets(self, targets: np.ndarray) -> None:
        """Targets that are not known from the first step on need a washout."""
        _check_known(targets, self.washout)

    def _arguments(self) -> dict[str, Any]:
        return self.model_dump(exclude={"kind", "keep_learning"})


class RlsConfig(OnlineConfig):
    """Recursive least squares: ridge regression that learns with every step, and forgets if it is told to."""

    kind: Literal["rls"]
    alpha: Annotated[float, Field(ge=1e-30)] = Field(default=1e-6, description="the penalty")
    forgetting: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="how much a step counts one step later; 1 / (1 - forgetting) steps are the memory"
    )

    def build(self) -> Readout:
        """An `RLSReadout` with these settings."""
        from reservoir_hw.readout.linear.online import RLSReadout

        return RLSReadout(**self._arguments())


class LmsConfig(OnlineConfig):
    """Least mean squares: a step down the gradient of each error; cheap, slow to learn and quick to forget."""

    kind: Literal["lms"]
    rate: PositiveFloat = Field(default=0.5, description="of learning; below 2 if normalised")
    normalised: bool = Field(default=True, description="divide the rate by the squared length of the states")

    @model_validator(mode="after")
    def _stable(self) -> Self:
        if self.normalised and self.rate >= 2:
            raise ValueError(f"rate {self.rate:g} must be below 2 where it is normalised")
        return self

    def build(self) -> Readout:
        """An `LMSReadout` with these settings."""
        from reservoir_hw.readout.linear.online import LMSReadout

        return LMSReadout(**self._arguments())


def _check_known(targets: np.ndarray, washout: int) -> None:
    known = np.flatnonzero(~np.isnan(targets).any(axis=(0, 2)))
    steps = int(known[0]) if len(known) else targets.shape[1]
    if steps > washout:
        raise ConfigurationError(
            f"washout is {washout}, but the targets of the first {steps} steps are not known (they ask for "
            f"what came before the data); set readout.washout to at least {steps}"
        )
