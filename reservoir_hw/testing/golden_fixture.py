"""What the fixture `golden_trace` does: the answer of a device, held against what it once answered."""

from __future__ import annotations

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
from reservoir_hw.testing import golden
from reservoir_hw.testing.comparison import REPEATS, ROUNDING, WORTH_SEEING, compare_exactly, compare_repeats, spread_of

FOLDER = "golden_traces"


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
        Any other device is driven eight times and compared statistically. `name` is that of the test by default. The
        trace must be of this device, unless `any_device`.
        """
        __tracebackhide__ = True
        path = self._path(name)
        try:
            if path in self._seen:
                raise ConfigurationError(f"{path} was used in this test already: give each drive a name of its own")
            self._seen.add(path)
            problem = self._problem(np.asarray(u), path, any_device=any_device)
        except ConfigurationError as error:
            problem = str(error)
        if problem:
            pytest.fail(problem)

    def _path(self, name: str | None) -> Path:
        if name is None:
            own = [str(value) for key, value in self._item.callspec.params.items() if key != "reservoir_device"]
            name = "-".join([self._item.path.stem, self._item.originalname, *own])
        return self._item.path.parent / FOLDER / re.sub(r"[^\w.+-]", "_", name)

    def _problem(self, u: np.ndarray, path: Path, *, any_device: bool) -> str | None:
        if u.ndim != 3 or len(u) != 1:
            raise ConfigurationError(f"golden_trace takes inputs (1, time, inputs), not {u.shape}")
        if self._item.config.option.update_golden_traces:
            _replace(self._reservoir, u, path)
            return None
        if not path.exists():
            raise ConfigurationError(f"there is no golden trace {path}; --update-golden-traces records it")
        trace = golden.read(path)
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

    def _states(self, u: np.ndarray) -> np.ndarray:
        self._reservoir.reset(1)
        return np.asarray(self._reservoir.run(u.astype(self._declared.numpy_dtype)))[0]


def _replace(reservoir: Reservoir, u: np.ndarray, path: Path) -> None:
    """Record anew; the old trace stays until the new one is whole."""
    new, old = path.with_name(f"{path.name}.new"), path.with_name(f"{path.name}.old")
    shutil.rmtree(new, ignore_errors=True)
    golden.record(reservoir, u, new)
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    os.replace(new, path)
    shutil.rmtree(old, ignore_errors=True)
