"""Whether a bundle computes here what it computed where it was made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.edge.bundle import Bundle
from reservoir_hw.readout.edge.manifest import Segment
from reservoir_hw.readout.edge.sessions import first_line, import_onnxruntime, make_session
from reservoir_hw.readout.edge.spread import Deviation, deviation_of, limit_of


@dataclass(frozen=True)
class Checked:
    """A segment, run on its golden inputs and compared with its golden outputs, of which the worst counts.

    Golden outputs that are empty, or not finite, agree with nothing.
    """

    segment: int
    graph: str
    worst: Deviation

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit; not a number is not."""
        return self.worst.share <= 1


@dataclass(frozen=True)
class Verification:
    """What `verify` found. All files of the bundle were checked, too."""

    bundle: str
    runtime: str
    segments: tuple[Checked, ...]
    remarks: tuple[str, ...] = ()
    """What int8 costs, and what nobody knows."""

    @property
    def passed(self) -> bool:
        """Whether every segment is within its bound."""
        return all(segment.passed for segment in self.segments)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        segments = [
            {"segment": one.segment, "graph": one.graph, **one.worst._asdict(), "passed": one.passed}
            for one in self.segments
        ]
        found = {"bundle": self.bundle, "runtime": self.runtime, "passed": self.passed, "segments": segments}
        return found | {"remarks": list(self.remarks)}


def verify(path: str | os.PathLike[str]) -> Verification:
    """Open a bundle with all checks, run every segment on its golden inputs and compare with its golden outputs.

    Golden values are arrays named `segment_0/tokens`: the number of the segment and the name of the value; and
    `spread/outputs`, the yardstick of the value.

    Raises `ConfigurationError` if the bundle cannot be opened, or holds no golden values for one of its segments.
    """
    runtime = import_onnxruntime()
    with Bundle.open(path) as bundle:
        golden = golden_values(bundle)
        checked = tuple(
            _check(bundle, index, segment, golden) for index, segment in enumerate(bundle.manifest.segments)
        )
        manifest = bundle.manifest
        remarks = [] if manifest.loss is None else [str(manifest.loss)]
        if manifest.ranges is None and manifest.input.dtype != "int64":
            remarks.append("Nobody knows the ranges of the training: infer cannot tell what lies outside.")
        return Verification(bundle.name, f"onnxruntime {runtime.__version__}", checked, tuple(remarks))


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
        for value in segment.gives:
            spread = golden.get(f"spread/{value.name}")
            known = spread is not None and spread.shape in ((1,), value.shape) and bool((spread > 0).all())
            if not (known or value.scalar):
                raise ConfigurationError(
                    f"bundle {bundle.name}: {name}: has no spread of {value.name}: export it again"
                )
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
    worst = deviation(bundle, index, make_session(bundle, index), inputs, golden)
    return Checked(index, segment.graph, worst)


def deviation(
    bundle: Bundle, index: int, session: Any, inputs: Mapping[str, np.ndarray], golden: Mapping[str, np.ndarray]
) -> Deviation:
    """How far a segment's outputs for these inputs are from its golden ones, where that is worst.

    Infinite where there is nothing to compare, or what is not finite. Of int8 the median of all steps counts: kernels
    differ between processors where an activation lies between two of its 8-bit steps, which is rare, and the last bit
    of a float decides. Raises `ConfigurationError` where the segment does not run on them.
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
    manifest = bundle.manifest
    found, median = [], manifest.precision == "int8"
    for value, output in zip(segment.gives, map(np.asarray, outputs), strict=True):
        if value.scalar:
            # A count of clipped values: one that lies on the bound may round to either side.
            continue
        expected, spread = golden[f"segment_{index}/{value.name}"], golden[f"spread/{value.name}"]
        limit = limit_of(value.dtype, manifest.precision, manifest.target)
        if output.shape != expected.shape or not expected.size or not np.isfinite(expected).all():
            # Nothing to compare with is no agreement.
            found.append(Deviation(value.name, 0, math.inf, limit, float(spread.flat[0])))
        else:
            found.append(deviation_of(value.name, output, expected, spread, limit, median=median))
    return max(found, key=lambda one: one.share, default=Deviation("", 0, 0.0, 1.0, 1.0))
