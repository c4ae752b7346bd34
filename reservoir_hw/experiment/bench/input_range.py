"""Inputs of a task brought into the range that a device declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.tasks.task import Split

_FILLED = 0.9
"""Of the range, by the training inputs: later ones may go further."""


@dataclass(frozen=True)
class Fitted:
    """A section `reservoir` for the inputs of a task; `what` was done to them, nothing where they lie within."""

    section: Document
    what: str = ""


def fitted(section: Document, config: ReservoirConfig, spec: ReservoirSpec, train: Split) -> Fitted:
    """The section with `out_of_range: clip`, and an `input_mask` where training inputs lie outside the range.

    The mask maps the least and the largest training input, behind the mask of the file if there is one, to the ends of
    the middle nine tenths of the range. It is one factor and one offset for all channels, and acts on what a closed
    loop feeds back as well. Raises `ConfigurationError` where the file's mask is a file itself.
    """
    assert spec.input_range is not None, "was looked at"
    low, high = spec.input_range
    inputs, given = train.inputs[train.valid], config.input_mask
    if given is not None:
        inputs = given.build(spec.inputs, train.inputs.shape[2], seed=getattr(config, "seed", 0)).apply(inputs)
    smallest, largest = float(inputs.min()), float(inputs.max())
    clipped = {**section.data, "out_of_range": "clip"}
    if low <= smallest and largest <= high:
        return Fitted(Document(clipped, section.origins))
    if given is not None and given.file is not None:
        raise ConfigurationError(
            f"its inputs are {smallest:.3g} to {largest:.3g} behind the mask in {given.file}, outside the range "
            f"[{low:g}, {high:g}] of the device: scale that mask, or draw one with input_mask.scaling and .offset"
        )
    gain = float(f"{_FILLED * (high - low) / (largest - smallest):.3g}")
    offset = float(f"{(low + high) / 2 - gain * (smallest + largest) / 2:.3g}")
    mask: dict[str, Any] = {"kind": "one_to_one", "scaling": gain, "offset": offset}
    if given is not None:
        scaling = (np.asarray(given.scaling) * gain).tolist()
        scaled = {"scaling": scaling, "bias_scaling": gain * given.bias_scaling, "offset": gain * given.offset + offset}
        mask = {**given.model_dump(mode="json", exclude_defaults=True), **scaled}
    sign = "-" if offset < 0 else "+"
    what = (
        f"{gain:g} u {sign} {abs(offset):g}; training inputs {smallest:.3g} to {largest:.3g}, range {low:g} to {high:g}"
    )
    return Fitted(Document({**clipped, "inputs": spec.inputs, "input_mask": mask}, section.origins), what)
