"""The keys that a sweep searches, checked before its first trial, and the experiment with values for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.configuration import Document, Location
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.configuration.document import varied_keys
from reservoir_hw.experiment.configuration.experiment import parse_experiment
from reservoir_hw.experiment.configuration.sweep import SweepConfig

_OTHER_VALUES = 20


def search_space(document: Document, config: SweepConfig) -> dict[str, Dimension]:
    """What is searched, with whole numbers where the key takes no others.

    Both ends of every range and every choice are tried in the experiment: alone, and if that is not possible with
    some values of the other keys. Raises `ConfigurationError` for an unknown key, for one that `vary` has too, and for
    a value that no experiment could have.
    """
    own = parse_experiment(document).reservoir.search
    searched = {**{f"reservoir.{key}": dimension for key, dimension in own.items()}, **config.search}
    if not searched:
        raise ConfigurationError(
            f"{document.origin(('sweep',))}: nothing is searched: `sweep.search` and `reservoir.search` are empty"
        )
    for key in searched:
        if key in varied_keys(document):
            raise ConfigurationError(
                f"{document.origin(_place(document, key))}: {key!r} is searched and varied; remove one"
            )
    space = {key: _typed(document, key, dimension) for key, dimension in searched.items()}
    others = _drawn(space)
    for key, dimension in space.items():
        for value in dimension.extremes():
            problem = _problem(document, {key: value})
            # A key may need another one that is searched too: the jump of a topology, as many links as nodes.
            if problem is not None and all(_problem(document, {**other, key: value}) for other in others):
                raise problem
    return space


def example_trial(document: Document, space: Mapping[str, Dimension]) -> Document:
    """The experiment with some values of all keys that are searched, of those that go together."""
    return with_values(document, next((values for values in _drawn(space) if _problem(document, values) is None), {}))


def _drawn(space: Mapping[str, Dimension]) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [{key: dimension.draw(random) for key, dimension in space.items()} for _ in range(_OTHER_VALUES)]


def with_values(document: Document, values: Mapping[str, Any]) -> Document:
    """The experiment without its section `sweep`, and with `values` of the keys that are searched."""
    here = Document.copy_of(document)
    here.data.pop("sweep", None)
    here.data.get("reservoir", {}).pop("search", None)
    for key, value in values.items():
        here.set(key, value, document.origin(_place(document, key)))
    return here


def _place(document: Document, key: str) -> Location:
    """Where a key that is searched stands."""
    place: Location = ("reservoir", "search", key.removeprefix("reservoir."))
    return place if key.startswith("reservoir.") and place in document.origins else ("sweep", "search", key)


def _typed(document: Document, key: str, dimension: Dimension) -> Dimension:
    """`{low: 0, high: 2}` means real numbers, unless the key takes whole ones only or a step says so."""
    if dimension.choices is not None or dimension.step is not None or not dimension.whole:
        return dimension
    low, high = map(float, dimension.range)
    if _problem(document, {key: low + 0.5}):
        return dimension
    return dimension.model_copy(update={"low": low, "high": high})


def _problem(document: Document, values: Mapping[str, Any]) -> ConfigurationError | None:
    try:
        parse_experiment(with_values(document, values))
    except ConfigurationError as error:
        return error
    return None
