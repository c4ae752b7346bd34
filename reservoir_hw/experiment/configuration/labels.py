"""Names of models in tables: rows of one name are repetitions, so what differs beside data and seeds shows in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig


def key_names(keys: Iterable[str]) -> dict[str, str]:
    """For each dotted key the shortest end of it that no other key has."""
    parts = {key: key.split(".") for key in keys}

    def end(key: str, count: int) -> str:
        return ".".join(parts[key][-count:])

    return {
        key: next(
            end(key, count)
            for count in range(1, len(own) + 1)
            if count == len(own) or all(end(key, count) != end(other, count) for other in parts if other != key)
        )
        for key, own in parts.items()
    }


def short(value: Any) -> str:
    """A value in few letters; a whole section without its seeds."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        rest = ", ".join(
            f"{key}={short(item)}" for key, item in value.items() if key != "kind" and not key.endswith("seed")
        )
        return f"{value.get('kind', '')}({rest})" if rest else str(value.get("kind", ""))
    return f"{value:g}" if isinstance(value, float) else str(value)


def baseline_labels(baselines: Sequence[BaselineConfig | ReservoirConfig | TokenModelConfig]) -> list[str]:
    """Their labels; where different ones have the same, with what differs between them."""
    settings = [
        {key: value for key, value in one.model_dump(mode="json").items() if not key.endswith("seed")}
        for one in baselines
    ]
    names = [one.name if isinstance(one, ReservoirConfig) else one.label for one in baselines]
    found = []
    for name, mine in zip(names, settings, strict=True):
        namesakes = [theirs for other, theirs in zip(names, settings, strict=True) if other == name]
        differing = [key for key in mine if any(theirs.get(key) != mine[key] for theirs in namesakes)]
        found.append(" ".join([name, *(f"{key}={short(mine[key])}" for key in differing)]))
    return found
