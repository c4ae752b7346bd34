"""A torch module and an estimator of scikit-learn as an experiment file names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, JsonValue, NonNegativeInt

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.functions import FunctionName, import_function, without_digest
from reservoir_hw.readout.configuration import GradientReadoutConfig, StateReadoutConfig
from reservoir_hw.tasks.task import Task

if TYPE_CHECKING:
    from reservoir_hw.readout.own.sklearn_readout import SklearnReadout
    from reservoir_hw.readout.own.torch_readout import TorchReadout
    from reservoir_hw.readout.training.options import TrainingOptions


class OwnConfig(StateReadoutConfig):
    """What readouts share that learn from all states of the training at once, and have a part of somebody's own."""

    gathers = True

    params: dict[str, JsonValue] = Field(default={}, description="keyword arguments of its constructor")
    input_connection: bool = Field(default=False, description="the readout sees the inputs too, behind the states")
    washout: NonNegativeInt = Field(default=0, description="leading steps of each sequence that are not learned")

    def check_task(self, task: Task) -> None:
        """Something that is known must be left to learn from behind the washout."""
        super().check_task(task)
        if not len(self._learned(task)):
            raise ConfigurationError(
                f"washout is {self.washout}, and behind it no target of the training is known: nothing is left to "
                "learn from"
            )

    def _learned(self, task: Task) -> np.ndarray:
        """The targets (steps, outputs) that are learned."""
        split = task.train
        known = ~np.isnan(split.targets).any(axis=2) & split.valid
        known[:, : self.washout] = False
        if split.at_end:
            known &= np.arange(known.shape[1]) == split.ends[:, None]
        return split.targets[known]


class TorchConfig(OwnConfig, GradientReadoutConfig):
    """A torch module of one's own, trained by gradients on states that are held in memory (`training.gradient`)."""

    kind: Literal["torch"]
    module: FunctionName = Field(
        description="the class as module:class, which is given nodes and outputs if it takes them"
    )
    loss: Literal["mse", "mae", "l1", "cross_entropy"] | FunctionName = Field(
        default="mse", description="or module:function of outputs and targets, (steps, outputs) each"
    )
    standardise: bool = Field(default=True, description="the module sees standardised states")
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="share of the training, its last windows, that is not learned: for patience and keep"
    )

    @property
    def label(self) -> str:
        """The name of the class."""
        return without_digest(self.module).rpartition(":")[2].rpartition(".")[2]

    def build(self) -> TorchReadout:
        """A `TorchReadout` with these settings. Raises `MissingExtra` without torch."""
        from reservoir_hw.core.arrays import import_torch

        import_torch(f"readout {self.kind}")
        from reservoir_hw.readout.own.torch_readout import TorchReadout

        return TorchReadout(self)

    def check_task(self, task: Task) -> None:
        """As for every readout; this machine has the class and the loss, and a cross-entropy one class at each step."""
        super().check_task(task)
        import_function(self.module, "module", "class")
        if ":" in self.loss:
            import_function(self.loss, "loss")
        targets = self._learned(task)
        one_class = np.isin(targets, (0, 1)).all() and (targets.sum(axis=1) == 1).all()
        if self.loss == "cross_entropy" and (task.outputs < 2 or not one_class):
            raise ConfigurationError("loss cross_entropy needs targets that are 1 for one class and 0 for all others")

    def check_features(self, nodes: int, task: Task) -> None:
        """The module can be made for so many nodes and these outputs, and takes states to outputs."""
        self.build().network_for(nodes, task.inputs, task.outputs)

    def check_options(self, options: TrainingOptions) -> None:
        """Raise `ConfigurationError` where they go by data that are held out, and there are none."""
        if not self.validation and (options.patience is not None or options.keep == "best"):
            raise ConfigurationError(
                "gradient.patience and keep: best need data that are held out: set readout.validation"
            )

    def about_export(self, nodes: int, task: Task) -> list[str]:
        """Why the module cannot be exported, in a sentence."""
        from reservoir_hw.readout.own.torch_readout import about_export

        return about_export(self, nodes, task.inputs, task.outputs)

    def windows(self, task: Task, context: int) -> int:
        """How many windows of so many steps the training has, as far as the washout tells."""
        return int((-(-np.maximum(task.train.ends + 1 - self.washout, 0) // context)).sum())


class SklearnConfig(OwnConfig):
    """A regressor or classifier of scikit-learn, on the states of single steps, held in memory."""

    kind: Literal["sklearn"]
    estimator: FunctionName = Field(description="the class as module:class, for instance sklearn.svm:SVR")

    @property
    def label(self) -> str:
        """The name of the class."""
        return without_digest(self.estimator).rpartition(":")[2]

    def build(self) -> SklearnReadout:
        """A `SklearnReadout` with these settings."""
        from reservoir_hw.readout.own.sklearn_readout import SklearnReadout

        return SklearnReadout(self)

    def check_task(self, task: Task) -> None:
        """As for every readout; and this machine can make the estimator."""
        super().check_task(task)
        self.build().estimator()
