"""How a file of measured data is read, and which of its columns are meant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError

DATA_VARIABLE = "RESERVOIR_HW_DATA"
DATA_PREFIX = "data:"
"""A path that begins so lies in the folder that `RESERVOIR_HW_DATA` names."""


class ReadConfig(Config):
    """How a text file is written, where guessing from its first lines goes wrong."""

    delimiter: str | None = Field(
        default=None, pattern='^[^"\r\n]$', description="what stands between columns; by default ; tab , or blanks"
    )
    decimal: Literal[".", ","] | None = None
    header: bool | None = Field(
        default=None, description="whether the table begins with a line of names; by default, as it looks"
    )
    skip_lines: NonNegativeInt = Field(default=0, description="lines at the top that are not looked at")


class ColumnsConfig(Config):
    """Some columns of an array or table."""

    array: str | None = Field(default=None, description="its name in a file that holds several")
    layout: Literal["time_first", "nodes_first"] = Field(
        default="time_first",
        description="time_first: (time, columns) or (sequences, time, columns); nodes_first: time is the last axis",
    )
    columns: list[str | int] | None = Field(
        default=None,
        min_length=1,
        description='which, in this order: names, patterns with * and ?, numbers (from 0), ranges such as "0:16"',
    )
    without: list[str | int] = Field(default=[], description="columns that are not taken, named in the same ways")
    names: list[str] | str | None = Field(
        default=None,
        description="names of the columns that are taken; or an array of the file with a name for each of its columns",
    )
    unit: str = Field(default="1", description="of the numbers in the file")


class TimeConfig(Config):
    """When the rows were measured: numbers, or time stamps of ISO 8601."""

    array: str | None = None
    column: str | int = 0
    unit_s: PositiveFloat = Field(default=1.0, description="of the numbers in the file, in seconds")


def resolve(file: str, folder: Path) -> Path:
    """The path that a configuration file in `folder` means. Raises `ConfigurationError` if no folder is set."""
    if not file.startswith(DATA_PREFIX):
        return folder / file
    data = os.environ.get(DATA_VARIABLE)
    if not data:
        raise ConfigurationError(
            f"{file} lies in the folder that the environment variable {DATA_VARIABLE} names, which is not set; "
            "set it, or name the file on the command line"
        )
    return Path(data) / file.removeprefix(DATA_PREFIX)
