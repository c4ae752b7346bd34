"""The declaration of a device that a model was trained on, without the device."""

from __future__ import annotations

from typing import Any

from reservoir_hw.core.errors import NotSupported
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec


class DeclaredReservoir(Reservoir):
    """A device that is not there: it has a declaration, and cannot be driven."""

    def __init__(self, spec: ReservoirSpec) -> None:
        # What a device can do, but this does not.
        able = {"snapshot": False, "settable": False, "programmable": False}
        super().__init__(spec.model_copy(update=able))
        if spec.differentiable:
            self.native = "torch"

    def _reset(self, batch: int) -> None:
        del batch

    def _run(self, u: Any, out: Any = None) -> Any:
        del u, out
        raise NotSupported("this model was loaded without its device: nothing can be driven")
