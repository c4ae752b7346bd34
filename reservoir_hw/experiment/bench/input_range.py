"""Inputs of a task brought into the range that a device declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.channels import into_range
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.tasks.task import Split


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
    channels = train.inputs.shape[2]
    if isinstance(given, MaskConfig):
        inputs = given.build(spec.inputs, channels, seed=getattr(config, "seed", 0)).apply(inputs)
    elif channels != spec.inputs:
        # The mask that spreads them stays within the range, too.
        return Fitted(Document({**section.data, "out_of_range": "clip"}, section.origins))
    smallest, largest = float(inputs.min()), float(inputs.max())
    clipped = {**section.data, "out_of_range": "clip"}
    if low <= smallest and largest <= high:
        return Fitted(Document(clipped, section.origins))
    if isinstance(given, MaskConfig) and given.file is not None:
        raise ConfigurationError(
            f"its inputs are {smallest:.3g} to {largest:.3g} behind the mask in {given.file}, outside the range "
            f"[{low:g}, {high:g}] of the device: scale that mask, or draw one with input_mask.scaling and .offset"
        )
    gain, offset = into_range((smallest, largest), spec.input_range)
    mask: dict[str, Any] = {"kind": "one_to_one", "scaling": gain, "offset": offset}
    if isinstance(given, MaskConfig):
        scaling = (np.asarray(given.scaling) * gain).tolist()
        scaled = {"scaling": scaling, "bias_scaling": gain * given.bias_scaling, "offset": gain * given.offset + offset}
        mask = {**given.model_dump(mode="json", exclude_defaults=True), **scaled}
    sign = "-" if offset < 0 else "+"
    what = (
        f"{gain:g} u {sign} {abs(offset):g}; training inputs {smallest:.3g} to {largest:.3g}, range {low:g} to {high:g}"
    )
    return Fitted(Document({**clipped, "inputs": spec.inputs, "input_mask": mask}, section.origins), what)
