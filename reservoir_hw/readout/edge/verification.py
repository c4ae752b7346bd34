"""Whether a bundle computes here what it computed where it was made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.readout.edge.bundle import Bundle
from reservoir_hw.readout.edge.manifest import Refused, about
from reservoir_hw.readout.edge.sessions import first_line, import_onnxruntime, make_session

INT8_LIMIT = 0.1
"""Of the root mean square of what int8 changes, in spreads."""
STILL = 8 * float(np.finfo(np.float32).eps)
"""What hardly moves is measured in this part of its largest number."""

Array = npt.NDArray[np.float64]


def spread_of(values: np.ndarray, *, logits: bool = False) -> Array:
    """Standard deviation (outputs,) of outputs (..., outputs), each for itself; never 0.

    Logits count without what all of one step have in common, which changes no probability.
    """
    rows = np.asarray(values, np.float64).reshape(-1, values.shape[-1])
    largest = np.abs(rows).max(axis=0, initial=0.0)
    if logits:
        rows = rows - rows.mean(axis=1, keepdims=True)
    spread = rows.std(axis=0) if len(rows) else np.zeros(rows.shape[1])
    return np.maximum(spread, np.maximum(STILL * largest, np.finfo(np.float32).tiny))


def limit_of(dtype: str, precision: str = "fp32", target: str = "segments") -> float:
    """How far a graph may be from its model in a value of this dtype, in spreads."""
    if precision == "int8":
        return INT8_LIMIT
    # The states of a simulated network inside carry errors on.
    return 1e-3 if target == "whole" else {"float32": 1e-4, "float64": 1e-5}[dtype]


class Deviation(NamedTuple):
    """The error of the output (`channel` of `value`) that is worst in units of what is allowed; in its spreads."""

    value: str
    channel: int
    error: float
    limit: float
    spread: float

    @property
    def share(self) -> float:
        """Of what is allowed; infinite for what is not finite."""
        return self.error / self.limit if np.isfinite(self.error) else np.inf


def deviation_of(
    name: str, found: np.ndarray, expected: np.ndarray, spread: np.ndarray, limit: float, *, median: bool = False
) -> Deviation:
    """The worst channel of a value (..., channels): found beside expected, both in one precision.

    A number is rounded to that precision once on each side, which is allowed beside `limit` spreads. Of a channel the
    largest error counts, or with `median` that of half of its numbers.
    """
    width = expected.shape[-1] if expected.ndim else 1
    one, other = (np.asarray(side, np.float64).reshape(-1, width) for side in (found, expected))
    spread = np.broadcast_to(spread, width)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.abs(one - other)
        errors = (np.median(apart, axis=0) if median else apart.max(axis=0, initial=0.0)) / spread
    rounding = np.finfo(expected.dtype).eps * np.abs(other).max(axis=0, initial=0.0) / spread
    limits = limit + rounding
    worst = int(np.argmax(np.nan_to_num(errors / limits, nan=np.inf)))
    error = float(errors[worst])
    return Deviation(
        name, worst, error if np.isfinite(error) else float("inf"), float(limits[worst]), float(spread[worst])
    )


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
        manifest, checked = bundle.manifest, []
        for index, segment in enumerate(manifest.segments):
            # Copied, as onnxruntime takes the address of its inputs and promises nothing about what it does there.
            inputs = {value.name: golden[f"segment_{index}/{value.name}"].copy() for value in segment.reads}
            worst = deviation(bundle, index, make_session(bundle, index), inputs, golden)
            checked.append(Checked(index, segment.graph, worst))
        remarks = [] if manifest.loss is None else [str(manifest.loss)]
        if manifest.ranges is None and manifest.input.dtype != "int64":
            remarks.append("Nobody knows the ranges of the training: infer cannot tell what lies outside.")
        return Verification(bundle.name, f"onnxruntime {runtime.__version__}", tuple(checked), tuple(remarks))


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
    with about(bundle.name, name):
        for index, segment in enumerate(bundle.manifest.segments):
            for value in segment.gives:
                spread = golden.get(f"spread/{value.name}")
                known = spread is not None and spread.shape in ((1,), value.shape) and bool((spread > 0).all())
                if not (known or value.scalar):
                    raise Refused(f"has no spread of {value.name}: export it again")
            for value in (*segment.reads, *segment.gives):
                array = golden.get(f"segment_{index}/{value.name}")
                if array is None or array.dtype != np.dtype(value.dtype):
                    raise Refused(f"has no array segment_{index}/{value.name} of {value.dtype}: export it again")
    return golden


def deviation(
    bundle: Bundle, index: int, session: Any, inputs: Mapping[str, np.ndarray], golden: Mapping[str, np.ndarray]
) -> Deviation:
    """How far a segment's outputs for these inputs are from its golden ones, where that is worst.

    Infinite where there is nothing to compare, or what is not finite. Of int8 the median of all steps counts: kernels
    differ between processors where an activation lies between two of its 8-bit steps, which is rare, and the last bit
    of a float decides. Raises `ConfigurationError` where the segment does not run on them.
    """
    segment = bundle.manifest.segments[index]
    try:
        outputs = session.run([value.name for value in segment.gives], dict(inputs))
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


# ---- Whether a device answers as the one did that the model was trained on: statistics of a golden response.


_STEPS, _REPEATS = 200, 5
_MOST_REPEATS = 1000

# A device that repeats itself better than this share of a node's movement is compared to this share.
_FLOOR = 1e-3

LARGEST = 1.5
"""Deviation, in units of what means of as many repeats differ by, up to which a device passes."""


@dataclass(frozen=True)
class ProbeComparison:
    """How far a device's response is from the golden one.

    `deviation` is √(mean over steps and nodes of (new − golden)² / expected²), both being means of as many repeats, and
    `expected` of a node what such means differ by, from the repeats that were recorded: about 1 for the same device.
    `worst_node` deviates most.
    """

    deviation: float
    worst_node: int
    worst_deviation: float

    @property
    def same(self) -> bool:
        """Whether it passes for the same device."""
        return self.deviation <= LARGEST


def record_probe(reservoir: Reservoir) -> dict[str, np.ndarray]:
    """Drive an open device several times from rest with the same noise; returns `inputs`, `mean` and `spread`.

    inputs (steps, inputs) are uniform within the middle half of the device's range, or ±0.5; mean (steps, nodes) and
    spread (nodes,) are those of the responses, the spread being the standard deviation between repeats.
    """
    spec = reservoir.spec
    low, high = reservoir.safe_range
    middle, reach = (low + high) / 2, (high - low) / 4
    drawn = generator(0, "probe").uniform(-1.0, 1.0, (_STEPS, spec.inputs))
    inputs = (middle + reach * drawn).astype(spec.dtype)
    responses = np.stack([_response(reservoir, inputs) for _ in range(_REPEATS)])
    return {
        "inputs": inputs,
        "mean": responses.mean(0).astype(np.float32),
        "spread": np.sqrt(responses.var(0, ddof=1).mean(0)).astype(np.float32),
        "repeats": np.array([_REPEATS], np.int64),
    }


def compare_probe(reservoir: Reservoir, golden: Mapping[str, np.ndarray]) -> ProbeComparison:
    """Drive an open device as the golden response was recorded, and compare."""
    missing = {"inputs", "mean", "spread", "repeats"} - set(golden)
    if missing:
        raise ConfigurationError(f"the golden response lacks {', '.join(sorted(missing))}: export the bundle again")
    inputs, mean = np.asarray(golden["inputs"]), np.asarray(golden["mean"], np.float64)
    spec = reservoir.spec
    spread, repeated = np.asarray(golden["spread"], np.float64), np.asarray(golden["repeats"])
    if spread.shape != (spec.nodes,) or repeated.shape != (1,) or not 1 <= int(repeated[0]) <= _MOST_REPEATS:
        raise ConfigurationError("the golden response does not fit together: export the bundle again")
    if inputs.ndim != 2 or inputs.shape[1] != spec.inputs or mean.shape != (len(inputs), spec.nodes):
        raise ConfigurationError(
            f"the golden response has {inputs.shape[-1]} inputs and {mean.shape[-1]} nodes, the device {spec.inputs} "
            f"and {spec.nodes}"
        )
    repeats = int(repeated[0])
    new = np.mean([_response(reservoir, inputs.astype(spec.dtype)) for _ in range(repeats)], 0)
    squared = np.square(spread) * 2 / repeats
    floor = _FLOOR * np.maximum(mean.std(0), 1e-6)
    per_node = np.square(new - mean).mean(0) / (squared + floor**2)
    worst = int(per_node.argmax())
    return ProbeComparison(float(np.sqrt(per_node.mean())), worst, float(np.sqrt(per_node[worst])))


def _response(reservoir: Reservoir, inputs: np.ndarray) -> np.ndarray:
    reservoir.reset(1)
    return np.asarray(reservoir.run(inputs[None]), np.float64)[0]
