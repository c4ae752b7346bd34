"""Whether a bundle computes here what it computed where it was made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.edge.bundle import Bundle
from reservoir_hw.readout.edge.manifest import Segment
from reservoir_hw.readout.edge.sessions import first_line, import_onnxruntime, make_session

BOUND = {"fp32": 1e-5, "int8": 1e-2}
"""Largest |Δ| of an output over max(1, max|y|).

int8 kernels differ between processors: where an activation lies between two of its 8-bit steps, the last bit of a
float decides, and one step is 1/255 of the range of all activations of the layer.
"""


@dataclass(frozen=True)
class Checked:
    """A segment, run on its golden inputs and compared with its golden outputs.

    `largest_error` and `largest_output` are of that output whose error is largest in units of its bound. Golden
    outputs that are empty, or not finite, agree with nothing.
    """

    segment: int
    graph: str
    largest_error: float
    largest_output: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the bound; not a number is not."""
        return self.largest_error <= self.bound


@dataclass(frozen=True)
class Verification:
    """What `verify` found. All files of the bundle were checked, too."""

    bundle: str
    runtime: str
    segments: tuple[Checked, ...]

    @property
    def passed(self) -> bool:
        """Whether every segment is within its bound."""
        return all(segment.passed for segment in self.segments)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        segments = [{**asdict(segment), "passed": segment.passed} for segment in self.segments]
        return {"bundle": self.bundle, "runtime": self.runtime, "passed": self.passed, "segments": segments}


def verify(path: str | os.PathLike[str]) -> Verification:
    """Open a bundle with all checks, run every segment on its golden inputs and compare with its golden outputs.

    Golden values are arrays named `segment_0/tokens`: the number of the segment and the name of the value. The bound
    is `BOUND` · max(1, max|y|) with the bundle's precision.

    Raises `ConfigurationError` if the bundle cannot be opened, or holds no golden values for one of its segments.
    """
    runtime = import_onnxruntime()
    with Bundle.open(path) as bundle:
        golden = golden_values(bundle)
        checked = tuple(
            _check(bundle, index, segment, golden) for index, segment in enumerate(bundle.manifest.segments)
        )
        return Verification(bundle.name, f"onnxruntime {runtime.__version__}", checked)


def golden_values(bundle: Bundle) -> dict[str, np.ndarray]:
    """The arrays `segment_0/tokens`, ... of a bundle.

    Raises `ConfigurationError` where there are none for one of the segments.
    """
    name = bundle.manifest.golden
    if name is None:
        raise ConfigurationError(
            f"bundle {bundle.name} holds no golden values, so there is nothing to compare with: export it again"
        )
    golden = bundle.tensors(name)
    for index, segment in enumerate(bundle.manifest.segments):
        for value in (*segment.reads, *segment.gives):
            array = golden.get(f"segment_{index}/{value.name}")
            if array is None or array.dtype != np.dtype(value.dtype):
                raise ConfigurationError(
                    f"bundle {bundle.name}: {name}: has no array segment_{index}/{value.name} of {value.dtype}: "
                    "export it again"
                )
    return golden


def _check(bundle: Bundle, index: int, segment: Segment, golden: dict[str, np.ndarray]) -> Checked:
    # Copied, as onnxruntime takes the address of its inputs and promises nothing about what it does there.
    inputs = {value.name: golden[f"segment_{index}/{value.name}"].copy() for value in segment.reads}
    worst, largest = deviation(bundle, index, make_session(bundle, index), inputs, golden)
    bound = BOUND[bundle.manifest.precision] * max(1.0, largest)
    return Checked(index, segment.graph, worst, largest, bound)


def deviation(
    bundle: Bundle, index: int, session: Any, inputs: Mapping[str, np.ndarray], golden: Mapping[str, np.ndarray]
) -> tuple[float, float]:
    """How far a segment's outputs for these inputs are from its golden ones: largest error, and that output's size.

    Infinite where there is nothing to compare, or what is not finite. Raises `ConfigurationError` where the segment
    does not run on them.
    """
    segment = bundle.manifest.segments[index]
    names = [value.name for value in segment.gives]
    try:
        outputs = session.run(names, dict(inputs))
    except Exception as error:
        # onnxruntime raises its own classes, which share no base but Exception.
        raise ConfigurationError(
            f"bundle {bundle.name}: {segment.graph}: does not run on its golden inputs: {first_line(error)}"
        ) from error
    found_errors: list[tuple[float, float]] = []
    for value, output in zip(segment.gives, outputs, strict=True):
        if value.scalar:
            # A count of clipped values: one that lies on the bound may round to either side.
            continue
        name = value.name
        expected = golden[f"segment_{index}/{name}"]
        found = np.asarray(output)
        if found.shape != expected.shape or not expected.size or not np.isfinite(expected).all():
            # Nothing to compare with is no agreement.
            found_errors.append((math.inf, 0.0))
            continue
        difference = float(np.abs(found.astype(np.float64) - expected.astype(np.float64)).max())
        output = float(np.abs(expected.astype(np.float64)).max())
        found_errors.append((difference if math.isfinite(difference) else math.inf, output))
    # Each output has a bound of its own: a large one would hide errors of the others.
    return max(found_errors, key=relative, default=(0.0, 0.0))


def relative(error_and_size: tuple[float, float]) -> float:
    """An error in units of what is allowed for an output of this size."""
    error, size = error_and_size
    return error / max(1.0, size)
