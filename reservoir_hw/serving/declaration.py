"""What a device says about itself on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.drivers.zeromq.frames import Encoding


def is_chunked(reservoir: Reservoir) -> bool:
    """Whether a run may come in several messages."""
    continuity = reservoir.spec.continuity
    return continuity == "held" or (continuity == "free_running" and reservoir.streams)


def declaration_of(reservoir: Reservoir, inputs: Encoding, states: Encoding) -> tuple[ReservoirSpec, dict[str, Any]]:
    """The spec of an open device with numbers that travel in these encodings, and the whole declaration.

    Raises `ConfigurationError` if inputs cannot reach the range of the device.
    """
    spec = reservoir.spec
    # Integers on the wire are a limit of the device, like those of its converters.
    for name, encoding in (("input", inputs), ("output", states)):
        if encoding.number.kind == "i":
            bits = 8 * encoding.number.itemsize
            spec = spec.model_copy(update={f"{name}_bits": min(bits, getattr(spec, f"{name}_bits") or bits)})
    if inputs.number.kind == "i":
        number = spec.numpy_dtype.type
        low, high = inputs.limits
        if spec.input_range is not None:
            low, high = max(low, spec.input_range[0]), min(high, spec.input_range[1])
        if not low < high:
            raise ConfigurationError(
                f"inputs as {inputs.number} with a scale of {inputs.scale:g} cannot reach the device's "
                f"range {spec.input_range}: choose another scale"
            )
        # Inwards: what the client may send in the dtype of the device must fit.
        low = float(low if float(number(low)) >= low else np.nextafter(number(low), number(np.inf)))
        high = float(high if float(number(high)) <= high else np.nextafter(number(high), number(-np.inf)))
        spec = spec.model_copy(update={"input_range": (low, high)})
    return spec, {
        "spec": spec.model_dump(mode="json"),
        "inputs": list(inputs),
        "states": list(states),
        "chunked": is_chunked(reservoir),
        "readout": True,
        # `Reservoir.run` has looked at them; only a narrower number could still overflow.
        "finite": reservoir.states_are_checked and (states.number.kind == "i" or states.number == spec.numpy_dtype),
    }
