"""Where a model is cut: at every crossing of a reservoir."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.readout.export.graph import Plan, Precision, Values
from reservoir_hw.readout.export.layers import refuse_changes
from reservoir_hw.readout.export.linear_readout import plan_of_states, whole_plan_of_readout

if TYPE_CHECKING:
    from reservoir_hw.readout.models.token_model import TokenModel


def plan_of(
    model: Any,
    reservoirs: Sequence[Reservoir] = (),
    precision: Precision = "fp32",
    *,
    recorded: Values | None = None,
    spread: np.ndarray | None = None,
) -> Plan:
    """A model cut at its reservoirs, as it says itself (`cut`, see `Stage`), or a linear readout.

    `reservoirs` is the open device of a linear readout, and `recorded` what the device answered (`record_series`),
    which may say how large the states are; `spread` (outputs,) is how much its outputs move. Raises
    `ConfigurationError` for what does not say how it is exported.
    """
    if hasattr(model, "cut"):
        from reservoir_hw.readout.export.cutters import Segments

        refuse_changes(model)
        return model.cut(Segments(model, precision))
    if not (hasattr(model, "linear_form") or hasattr(model, "network")):
        raise ConfigurationError(
            f"a {type(model).__name__} cannot be exported: it is no linear readout, and does not say where its "
            "reservoirs are (method cut, docs/extending.md); a torch module of your own goes through export_module"
        )
    if len(reservoirs) != 1:
        raise ConfigurationError(f"a {type(model).__name__} is exported with its reservoir: give it, open")
    return plan_of_states(model, reservoirs[0].spec, precision, recorded=recorded, spread=spread)


# ---- Models with the simulated network that they were trained on inside: one graph, no device.


def whole_plan(model: Any, precision: Precision = "fp32", *, reservoir: Reservoir | None = None) -> Plan:
    """One graph from the model's input to its output, with the states of its simulated reservoirs carried.

    `model` is a linear readout, or says itself how it is cut (`cut`, see `Stage`). A linear readout knows no reservoir:
    it needs the `reservoir` that gave it its states. With int8 the networks stay in their own precision.

    The reference is the model itself driven by its simulated reservoirs, step by step from the carried states; those
    must be open when the plan is certified. Rounding differs between the two by a few units in the last place (the
    simulation has a tanh of its own). A network that forgets keeps that small for any length. A chaotic one, of a
    spectral radius well above 1 and weakly driven, does not: there the two agree over the first steps, which
    are certified, and drift apart within some hundred, as two simulations of it on different machines would.

    Raises `ConfigurationError` for reservoirs other than an `esn` without non-idealities in this process.
    """
    if hasattr(model, "cut"):
        from reservoir_hw.readout.export.cutters import Whole

        refuse_changes(model)
        return model.cut(Whole(model, precision))
    if not hasattr(model, "linear_form"):
        raise ConfigurationError(
            f"a {type(model).__name__} cannot be exported with its reservoir inside: it is no linear readout, and "
            "does not say where its reservoirs are (method cut, docs/extending.md)"
        )
    if reservoir is None:
        raise ConfigurationError(
            f"a {type(model).__name__} does not know its reservoir: whole_plan(readout, reservoir=esn)"
        )
    return whole_plan_of_readout(model, reservoir, precision)


# ---- What crosses the reservoirs of a model while it reads something: the recorded side of a certificate.


def record_text(model: TokenModel, tokens: np.ndarray) -> Values:
    """Let a model read tokens (batch, time) from rest; returns them, and the states that its devices answered."""
    import torch

    from reservoir_hw.readout.models.token_model import evaluating

    with evaluating(model), _watched([layer.reservoir for layer in model.reservoir_layers]) as seen:
        device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
        model.features(torch.from_numpy(tokens.astype(np.int64)).to(device))
    return {"tokens": tokens.astype(np.int64), **{f"states_{number}": states for number, states in enumerate(seen)}}


def record_series(reservoir: Reservoir, inputs: np.ndarray) -> Values:
    """Drive a device from rest with inputs (batch, time, inputs); returns them and the states."""
    given = np.ascontiguousarray(inputs, reservoir.spec.dtype)
    reservoir.reset(len(given))
    return {"inputs": given, "states_0": np.asarray(reservoir.run(given))}


class _Watch:
    """Keeps the states of every drive."""

    def __init__(self, kept: list[np.ndarray]) -> None:
        self._kept = kept

    def was_reset(self, *, from_rest: bool) -> None:
        """Of no interest."""

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        """Keep them."""
        if states is not None:
            self._kept.append(states.copy())


@contextmanager
def _watched(reservoirs: Sequence[Reservoir]) -> Iterator[list[np.ndarray]]:
    """States of all drives meanwhile, in their order."""
    kept: list[np.ndarray] = []
    with ExitStack() as stack:
        for reservoir in {id(one): one for one in reservoirs}.values():
            stack.enter_context(reservoir.observed_by(_Watch(kept)))
        yield kept
