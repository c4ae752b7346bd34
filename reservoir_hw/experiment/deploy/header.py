"""A trained readout as a C header, and what its precision costs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.experiment.deploy.job import Export
from reservoir_hw.experiment.deploy.quantised import Stored
from reservoir_hw.readout.edge.verification import spread_of
from reservoir_hw.tasks.task import Task

if TYPE_CHECKING:
    from reservoir_hw.readout.export.graph import Values

LIMIT = 1e-3
"""Of the error of a header that computes in float32, in spreads of the output."""


def ranges_of(spec: ReservoirSpec, recorded: Values | None, task: Task | None) -> dict[str, tuple[float, float]]:
    """The range of states and inputs: as the device declares it, otherwise as recorded."""
    found = {}
    if spec.state_range is not None:
        found["state_range"] = spec.state_range
    elif recorded is not None:
        found["state_range"] = _extent(recorded["states_0"])
    if spec.input_range is not None:
        found["input_range"] = spec.input_range
    elif task is not None:
        found["input_range"] = _extent(task.train.inputs)
    return found


def _extent(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def used_ranges(readout: Any, ranges: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Those that the header needs."""
    names = ("state_range", "input_range") if getattr(readout, "input_connection", False) else ("state_range",)
    return {name: ranges[name] for name in names if name in ranges}


def precision_note(readout: Any, recorded: Values, stored: Stored | None = None) -> str:
    """What float32 changes on recorded states behind the washout, in words.

    Raises `ConfigurationError` where an output loses more than `LIMIT` of what it moves by.
    """
    states, inputs = recorded["states_0"], recorded.get("inputs")
    if not getattr(readout, "input_connection", False):
        inputs = None
    # Overflow is an error of its own, found below.
    with np.errstate(over="ignore", invalid="ignore"):
        both = [header_outputs(readout, states, inputs, dtype) for dtype in (np.float32, np.float64)]
        single, exact = both if stored is None else map(stored.behind, both)
        spread = spread_of(exact) if stored is None or stored.spread is None else stored.spread
        errors = np.abs(single - exact).reshape(-1, len(spread)).max(axis=0) / spread
    # NaN loses all.
    lost = np.nan_to_num(errors, nan=np.inf)
    worst = int(lost.argmax())
    measured = (
        f"at most {errors[worst]:.2g} of what it moves by on {math.prod(exact.shape[:-1])} recorded steps (output "
        f"{worst}, whose standard deviation is {spread[worst]:.2g})"
    )
    if lost[worst] > LIMIT:
        raise ConfigurationError(
            f"a header that computes in float32 differs from this readout by {measured}: more than {LIMIT:g} of it. "
            "Large states and weights that cancel are lost in float32: train again on states that are scaled to about "
            "1 and have no large mean, or with a larger alpha; nothing was written"
        )
    return f"float32 changes an output by {measured}."


def header_outputs(readout: Any, states: np.ndarray, inputs: np.ndarray | None, dtype: Any) -> np.ndarray:
    """What the fp32 header computes, in its order of sums, in a dtype."""
    from reservoir_hw.readout.export.c_header import matrices_of

    def dot(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
        weights = weights.astype(dtype)
        sums = np.zeros((4, *values.shape[:-1], len(weights)), dtype)
        in_fours = weights.shape[1] // 4 * 4
        for feature in range(weights.shape[1]):
            sums[feature % 4 if feature < in_fours else 0] += values[..., feature, None] * weights[:, feature]
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    first, second, bias, widths = matrices_of(readout)
    found = dot(first[:, : widths.nodes], states.astype(dtype))
    outputs = bias.astype(dtype) + (found if second is None else dot(second, found))
    return outputs if inputs is None else outputs + dot(first[:, widths.nodes :], inputs.astype(dtype))


def write_header(
    work: Export,
    readout: Any,
    specs: Sequence[ReservoirSpec],
    ranges: Mapping[str, tuple[float, float]],
    recorded: Values | None,
    stored: Stored | None = None,
) -> None:
    """Write the header of a readout, with what was trained where in its comment."""
    from reservoir_hw.readout.export.c_header import c_header

    name = re.sub(r"\W", "_", work.path.stem, flags=re.ASCII) or "readout"
    if name[0].isdigit():
        name = f"readout_{name}"
    provenance = {
        "trained in the run of": str(work.row.provenance.get("time", "")),
        "model": work.row.label,
        **{f"device {number}": spec.identity.fingerprint for number, spec in enumerate(specs)},
    }
    if work.loss is not None:
        provenance["precision"] = str(work.loss)
    used = used_ranges(readout, ranges) if work.precision == "int8" else {}
    work.notes += [f"{key.replace('_', ' ')} {low:g} to {high:g}" for key, (low, high) in used.items()]
    if recorded is not None and work.precision == "fp32":
        work.notes.append(precision_note(readout, recorded, stored))
    washout = 0 if stored is None else stored.washout
    text = c_header(
        readout, name=name, precision=work.precision, provenance=provenance, series=work.row.series, washout=washout,
        **used,
    )  # fmt: skip
    work.path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(work.path, text)
    work.bytes = work.path.stat().st_size
