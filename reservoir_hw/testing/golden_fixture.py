"""What the fixture `golden_trace` does: the answer of a device, held against what it once answered."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.measures.comparison import (
    REPEATS,
    ROUNDING,
    WORTH_SEEING,
    compare_exactly,
    compare_repeats,
    spread_of,
)
from reservoir_hw.testing.golden import read, record

FOLDER = "golden_traces"

# By path: the test that recorded a trace in this session.
_RECORDED: pytest.StashKey[dict[Path, str]] = pytest.StashKey()

_NAME = re.compile(r"[\w.-]{1,100}")

_LONGEST = 150


class GoldenTraces:
    """Compares answers with the traces in the folder golden_traces/ beside a test, or records these.

    `declared` is the spec of the device that answers, also where `reservoir` is a recording of it.
    """

    def __init__(self, reservoir: Reservoir, declared: ReservoirSpec, item: Any) -> None:
        self._reservoir, self._declared, self._item = reservoir, declared, item
        self._seen: set[Path] = set()

    def __call__(self, u: np.ndarray, name: str | None = None, *, any_device: bool = False) -> None:
        """Drive with `u` (1, time, inputs) from rest, and fail where the states are not those of the trace.

        A deterministic device is driven once; of its states, a difference of 0.001 standard deviations is rounding.
        Any other device is driven eight times and compared statistically. Traces belong to a test and a device;
        `name` tells those of one test apart. With `any_device` there is one trace for all devices.
        """
        __tracebackhide__ = True
        try:
            path = self._path(name, any_device=any_device)
            if path in self._seen:
                raise ConfigurationError(f"{path} was used in this test already: give each drive a name of its own")
            self._seen.add(path)
            problem = self._problem(np.asarray(u), path, any_device=any_device)
        except ConfigurationError as error:
            problem = str(error)
        if problem:
            pytest.fail(problem)

    def _path(self, name: str | None, *, any_device: bool) -> Path:
        """Of the module, the classes, the test, its parameters, the device, and the name of the trace."""
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name) and name.strip(".")):
            raise ConfigurationError(
                f"{name!r} is no name of a golden trace: it has at most 100 letters, digits, '.', '_' and '-'"
            )
        item = self._item
        parameters = item.callspec.id
        if any_device:
            # As pytest writes it.
            device = item.callspec.params["reservoir_device"].encode("unicode_escape").decode()
            parameters = f"-{parameters}-".replace(f"-{device}-", "-", 1)[1:-1]
        classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
        test = ".".join([item.path.stem, *classes, item.originalname])
        text = test + (parameters and f"-{parameters}") + ("" if name is None else f"+{name}")
        plain = re.sub(r"[^\w.+-]", "_", text)
        if plain != text or len(plain) > _LONGEST:
            # Other names that look alike, or begin alike, are other names.
            plain = f"{plain[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return item.path.parent / FOLDER / plain

    def _problem(self, u: np.ndarray, path: Path, *, any_device: bool) -> str | None:
        if u.ndim != 3 or len(u) != 1 or not u.shape[1]:
            raise ConfigurationError(f"golden_trace takes inputs (1, time, inputs) of at least one step, not {u.shape}")
        if self._item.config.option.update_golden_traces:
            self._update(u, path)
            return None
        if not path.exists():
            raise ConfigurationError(f"there is no golden trace {path}; --update-golden-traces records it")
        trace = read(path)
        trace.check(self._declared, any_device=any_device)
        if not np.array_equal(trace.inputs, u[0].astype(trace.spec.numpy_dtype)):
            raise ConfigurationError(f"{path} was recorded with other inputs; --update-golden-traces records it anew")
        spread = spread_of(trace.states)
        if self._declared.deterministic and trace.spec.deterministic:
            found = compare_exactly(trace.states[0], self._states(u), spread=spread, tolerance=ROUNDING)
        else:
            taken = np.stack([self._states(u) for _ in range(REPEATS)])
            found = compare_repeats(trace.repeats(REPEATS), taken, spread=spread)
        if found.differs:
            return f"{path}: the device answers otherwise: {found}"
        if not found.conclusive:
            return (
                f"{path}: a difference below {found.smallest:.2g} standard deviations of the states could not have "
                f"been seen, and {WORTH_SEEING:g} matters: the device scatters too much"
            )
        return None

    def _update(self, u: np.ndarray, path: Path) -> None:
        recorded = self._item.config.stash.setdefault(_RECORDED, {})
        test = self._item.nodeid
        if (other := recorded.get(path, test)) != test:
            raise ConfigurationError(
                f"{path} was just recorded by {other}, and {test} would replace it: a trace for any device is recorded "
                "with a single --reservoir"
            )
        _replace(self._reservoir, u, path)
        recorded[path] = test

    def _states(self, u: np.ndarray) -> np.ndarray:
        self._reservoir.reset(1)
        return np.asarray(self._reservoir.run(u.astype(self._declared.numpy_dtype)))[0]


def _replace(reservoir: Reservoir, u: np.ndarray, path: Path) -> None:
    """Record anew; the old trace stays until the new one is whole."""
    new, old = path.with_name(f"{path.name}.new"), path.with_name(f"{path.name}.old")
    shutil.rmtree(new, ignore_errors=True)
    try:
        record(reservoir, u, new)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    os.replace(new, path)
    shutil.rmtree(old, ignore_errors=True)
