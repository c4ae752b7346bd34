"""Mapping files: which numbers of a file are inputs, which are states, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator

from reservoir_hw.core.configuration import Config, Document, validate
from reservoir_hw.core.tables.configuration import ColumnsConfig, ReadConfig, TimeConfig

_Pair = tuple[float, float]


class ScaleConfig(Config):
    """An affine map to dimensionless numbers."""

    range: _Pair | Literal["data"] = Field(
        default="data", description="two values in the unit of the file; data: the least and the greatest of it"
    )
    onto: _Pair = Field(default=(-1.0, 1.0), description="what becomes of them")

    @model_validator(mode="after")
    def _apart(self) -> ScaleConfig:
        if self.onto[0] == self.onto[1] or self.range[0] == self.range[1]:
            raise ValueError("the two values of `range` and of `onto` must differ")
        return self


class InputsConfig(ColumnsConfig):
    """What the device was driven with."""

    file: str | None = Field(default=None, description="another file than that of the states")
    scale: ScaleConfig | None = Field(default=None, description="by default the numbers of the file are the inputs")


class StatesConfig(ColumnsConfig):
    """What was measured."""

    drop: list[Literal["constant", "nan"]] = Field(
        default=[], description="leave out columns that never change, or that hold a NaN; they are counted and named"
    )


class DeviceConfig(Config):
    """Which device it was."""

    vendor: str
    model: str
    serial: str = ""
    firmware: str = ""
    simulated: bool = Field(description="no default: every result says whether it came from hardware")


class MappingConfig(Config):
    """A mapping file."""

    file: str | None = Field(
        default=None,
        description="relative to the mapping file; data:NAME lies in the folder of RESERVOIR_HW_DATA; files on the "
        "command line stand in for it",
    )
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="of `file`; another content is refused"
    )
    read: ReadConfig = ReadConfig()
    device: DeviceConfig
    inputs: InputsConfig
    states: StatesConfig
    rows: tuple[NonNegativeInt, NonNegativeInt | None] = Field(
        default=(0, None), description="first row and the one behind the last"
    )
    latency_steps: NonNegativeInt = Field(
        default=0, description="rows by which the response to an input stands below it; removed on import"
    )
    time: TimeConfig | None = None
    step_period_s: NonNegativeFloat | None = Field(default=None, description="where there is no time column")
    dtype: Literal["float32", "float64"] = "float32"
    sample: str = ""
    operator: str = ""
    notes: str = ""

    @model_validator(mode="after")
    def _one_clock(self) -> MappingConfig:
        if self.time is not None and self.step_period_s is not None:
            raise ValueError("give either `time` or `step_period_s`, not both")
        return self


def load_mapping(path: str | Path) -> MappingConfig:
    """A mapping file (YAML or JSON). Raises `ConfigurationError` that names the line."""
    return validate(MappingConfig, Document.from_file(path))
