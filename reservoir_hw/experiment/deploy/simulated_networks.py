"""Simulated reservoirs that can go inside a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir

if TYPE_CHECKING:
    from reservoir_hw.readout.export.simulated_network import SimulatedNetwork


def simulated_networks(devices: Sequence[Reservoir]) -> list[SimulatedNetwork]:
    """The weights of simulated echo state networks. Raises `ConfigurationError` for anything else."""
    from reservoir_hw.readout.export.simulated_network import SimulatedNetwork

    found = []
    for number, device in enumerate(devices):
        weights = getattr(device, "weights", None)
        spec = device.spec
        if not (spec.identity.simulated and spec.identity.model == "esn" and weights is not None):
            raise ConfigurationError(
                f"reservoir {number} ({spec.identity.model}) cannot be put inside a graph: only a simulated esn in "
                "this process can; export the segments (--target segments), and drive the reservoir beside them"
            )
        if not spec.deterministic or spec.input_bits or spec.output_bits or device.input_mask is not None:
            raise ConfigurationError(
                f"reservoir {number} has non-idealities or an input mask, which a graph has not: export the segments "
                "(--target segments), and drive the reservoir beside them"
            )
        esn = cast(Any, device)
        found.append(
            SimulatedNetwork(
                W=weights.recurrent(),
                W_in=weights.W_in,
                bias=weights.bias,
                leak=weights.leak,
                activation=esn.activation,
                dtype=spec.dtype,
            )
        )
    return found
