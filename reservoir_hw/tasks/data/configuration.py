"""What an experiment file says about a user's own data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.functions import FunctionName
from reservoir_hw.core.tables.configuration import ColumnsConfig, ReadConfig, TimeConfig
from reservoir_hw.tasks.prediction.task import ClosedLoop
from reservoir_hw.tasks.task import TaskConfig

if TYPE_CHECKING:
    from pathlib import Path


GivenName = Annotated[str, Field(pattern=r"^given:[0-9a-f]{32}$")]
"""Arrays that a program gave (`core.given`)."""


class TargetsConfig(ColumnsConfig):
    """What the readout learns to say."""

    file: str | None = Field(default=None, description="another file than that of the inputs, row for row")
    ahead_steps: PositiveInt | None = Field(default=None, description="the inputs themselves, so many steps later")
    missing: Literal["refuse", "skip"] = Field(
        default="refuse", description="skip: a row with an empty target is driven, not learned, not judged, and counted"
    )


class LabelsConfig(Config):
    """The class of each series: a table with a row for each file, or a column of the files themselves."""

    file: str | None = Field(default=None, description="a table; null: `label` is a column, or array, of each file")
    name: str = Field(default="file", description="column of the table with the names of the files")
    label: str = Field(default="label", description="column with the class")
    group: str | None = Field(default=None, description="column of the table: series of one group are never apart")


class EvenTimeConfig(TimeConfig):
    """When the rows were measured: it must increase evenly."""

    gaps: Literal["refuse", "split"] = Field(default="refuse", description="split: a new series begins behind a gap")


class TestConfig(Config):
    """What the test is, where it is no share."""

    rows: tuple[int, int] | None = Field(default=None, description="of the one series: first row, and the one behind")
    files: str | list[str] | None = Field(default=None, description="files of their own, path, list or glob")
    seed: NonNegativeInt = Field(default=0, description="of a share of several series")
    share: Annotated[float, Field(gt=0, lt=1)] | None = Field(default=None, description="of one series its end")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(one is not None for one in (self.rows, self.files, self.share)) != 1:
            raise ValueError("give one of rows, files and share")
        return self


class FoldsConfig(Config):
    """Each part is the test once."""

    count: Annotated[int, Field(ge=2)]
    order: Literal["blocked", "time"] = Field(
        default="blocked", description="of one series; time: learned only from what came before"
    )
    gap_steps: NonNegativeInt | None = Field(default=None, description="left out beside the test; null: the washout")
    seed: NonNegativeInt = Field(default=0, description="of whole series")


class ScaleConfig(Config):
    """Where numbers are brought to; the statistics are those of the training alone."""

    inputs: Literal["range", "standard", "none"] = Field(
        default="range", description="range: from -1 to 1, with a margin; standard: mean 0 and standard deviation 1"
    )
    targets: Literal["standard", "range", "none"] = "standard"
    margin: NonNegativeFloat = Field(default=0.1, description="range: so much wider than the training, at both ends")


class DataSettings(TaskConfig):
    """All that a user can say of the data."""

    kind: Literal["data"]
    files: str | list[str] | None = Field(default=None, description="path, list or glob; each file is one series")
    call: FunctionName | None = Field(default=None, description="module:function that returns inputs and targets")
    params: dict[str, Any] = Field(default={}, description="keywords of that function")
    inputs: ColumnsConfig | GivenName = Field(default=ColumnsConfig(), description="what drives the reservoir")
    trace: str | None = Field(default=None, description="a store whose inputs are driven, with targets of one's own")
    targets: TargetsConfig | GivenName | None = None
    labels: LabelsConfig | GivenName | None = Field(default=None, description="classes, one for each series")
    decide: Literal["mean", "last"] = Field(
        default="mean", description="the answer for a series: largest mean over its steps, or its last step"
    )
    time: EvenTimeConfig | None = None
    read: ReadConfig = ReadConfig()
    continuous: Literal["files"] | None = Field(
        default=None, description="files: they are one recording, in this order; null: each begins at rest"
    )
    test: Annotated[float, Field(gt=0, lt=1)] | Literal["none"] | TestConfig | None = Field(
        default=None,
        description="a share (the end of one series, whole ones of several), rows, files, or none; null: 0.25",
    )
    folds: FoldsConfig | None = Field(default=None, description="in the place of a test: each part is the test once")
    fold: NonNegativeInt | None = Field(default=None, description="which of them; null: all, one after the other")
    scale: ScaleConfig = ScaleConfig()
    judge_from: NonNegativeInt | None = Field(
        default=None, description="first step of each series that is judged; null: the washout where it begins at rest"
    )
    washout: NonNegativeInt = Field(default=0, description="that of the readout, which an experiment fills in")
    metrics: list[str] = Field(
        default=[], description="further ones: module:function of (targets, outputs), such as those of sklearn.metrics"
    )
    closed_loop: ClosedLoop | None = Field(default=None, description="forecast from the readout's own answers")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        sources = [name for name in ("files", "call", "trace") if getattr(self, name) is not None]
        sources += ["arrays as inputs"] * isinstance(self.inputs, str)
        if len(sources) != 1:
            raise ValueError(
                f"give one of files, call, trace and arrays as inputs, not {' and '.join(sources) or 'none'}"
            )
        if self.call is None and (self.targets is None) == (self.labels is None):
            raise ValueError("give `targets` (columns, a file, ahead_steps) or `labels` (classes of whole series)")
        if self.folds is not None and self.test is not None:
            raise ValueError("give `test` or `folds`, not both")
        if self.fold is not None and (self.folds is None or self.fold >= self.folds.count):
            raise ValueError("fold is one of the `folds`, counted from 0")
        ahead = isinstance(self.targets, TargetsConfig) and self.targets.ahead_steps == 1
        if self.closed_loop is not None and not (ahead and self.folds is None):
            raise ValueError("closed_loop needs targets: {ahead_steps: 1} of all inputs, and a test")
        if self.test == "none" and self.closed_loop is not None:
            raise ValueError("closed_loop forecasts a test: leave out test: none")
        if self.trace is not None and (self.scale.inputs != "none" or self.folds is not None):
            raise ValueError("inputs of a trace are as they were driven: scale: {inputs: none}, and no folds")
        return self

    @property
    def fold_count(self) -> int:
        """Folds that are still to be taken apart."""
        return self.folds.count if self.folds is not None and self.fold is None else 1

    def for_readout(self, readout: Config) -> Self:
        """With its washout: series that begin at rest are judged behind it."""
        return self.model_copy(update={"washout": getattr(readout, "washout", 0)})

    def keep(self, folder: Path) -> None:
        """Write the arrays that a program gave."""
        from reservoir_hw.core.given import given

        for name in (self.inputs, self.targets, self.labels):
            if isinstance(name, str):
                given(name, "task").keep(folder)
