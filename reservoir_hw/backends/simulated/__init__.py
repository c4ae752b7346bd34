"""Simulated reservoirs: `Esn` with `EsnWeights`, drawn, loaded or from your own arrays."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reservoir_hw.backends.simulated.esn import Esn
    from reservoir_hw.backends.simulated.weights import EsnWeights, draw_weights

__all__ = ["Esn", "EsnWeights", "draw_weights"]

_HOME = {"Esn": "esn", "EsnWeights": "weights", "draw_weights": "weights"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
