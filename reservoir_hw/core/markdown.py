"""Tables of a README, and the numbers in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.statistics import half_width


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *body)]


def spread(values: Sequence[float] | np.ndarray, form: str = ".3f") -> str:
    """Mean ± standard deviation; of one value just the value."""
    deviation = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{deviation}"


def interval(differences: Sequence[float] | np.ndarray, form: str = "+.3f") -> str:
    """Mean and 95 % interval (Student) of paired differences."""
    values = np.asarray(differences)
    half = half_width(values)
    return f"{values.mean():{form}} [{values.mean() - half:{form}}, {values.mean() + half:{form}}]"


def replace_tables(path: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Put each table between the lines `<!-- name -->` and `<!-- end of name -->` of a file.

    Raises `ConfigurationError` where a file lacks them, and then leaves it as it is.
    """
    text = path.read_text()
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (found and closed):
            raise ConfigurationError(f"{path}: there is no place for {name}; add the lines {begin.strip()} and {end}")
        text = head + begin + "\n".join(lines) + "\n" + end + tail
    path.write_text(text)
