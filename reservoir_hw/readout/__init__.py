"""The digital side of an experiment: what reads the states of a reservoir and is trained.

    from reservoir_hw.readout import RidgeReadout

    readout = RidgeReadout("gcv", washout=100).fit(states, targets)
    outputs = readout.predict(states)

`RidgeReadout` needs numpy and safetensors only, so the readout of a bench can be trained and used where
there is no torch. Names are imported when they are first asked for (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reservoir_hw.readout._chunks import Chunk
    from reservoir_hw.readout._errors import IllConditionedWarning, NotSolved
    from reservoir_hw.readout.ridge import RidgeReadout

__all__ = ["Chunk", "IllConditionedWarning", "NotSolved", "RidgeReadout"]

_HOME = {
    "Chunk": "_chunks",
    "IllConditionedWarning": "_errors",
    "NotSolved": "_errors",
    "RidgeReadout": "ridge",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
