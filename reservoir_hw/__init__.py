"""Hardware-in-the-loop framework for physical reservoir computing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reservoir_hw.configuration import Config
    from reservoir_hw.experiment import Experiment, Result
    from reservoir_hw.readout import RidgeReadout
    from reservoir_hw.reservoir import Reservoir
    from reservoir_hw.reservoir_config import ReservoirConfig, open_reservoir
    from reservoir_hw.spec import Counters, Identity, ReservoirSpec

__version__ = "0.1.0"

# Loaded on first use: `reservoir-hw --help` needs neither numpy nor pydantic.
_PUBLIC = {
    "Config": "reservoir_hw.configuration",
    "Counters": "reservoir_hw.spec",
    "Experiment": "reservoir_hw.experiment",
    "Identity": "reservoir_hw.spec",
    "Reservoir": "reservoir_hw.reservoir",
    "ReservoirConfig": "reservoir_hw.reservoir_config",
    "ReservoirSpec": "reservoir_hw.spec",
    "Result": "reservoir_hw.experiment",
    "RidgeReadout": "reservoir_hw.readout",
    "open_reservoir": "reservoir_hw.reservoir_config",
}

__all__ = [
    "Config",
    "Counters",
    "Experiment",
    "Identity",
    "Reservoir",
    "ReservoirConfig",
    "ReservoirSpec",
    "Result",
    "RidgeReadout",
    "__version__",
    "open_reservoir",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
