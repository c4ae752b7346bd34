"""Hardware-in-the-loop framework for physical reservoir computing."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.core.configuration import Config
    from reservoir_hw.core.reservoir import Reservoir
    from reservoir_hw.core.reservoir_config import ReservoirConfig, open_reservoir
    from reservoir_hw.core.spec import Counters, Identity, ReservoirSpec
    from reservoir_hw.experiment import Experiment, Result
    from reservoir_hw.readout import RidgeReadout

__version__ = "0.1.0"

# Loaded on first use: `reservoir-hw --help` needs neither numpy nor pydantic.
_PUBLIC = {
    "Config": "reservoir_hw.core.configuration",
    "Counters": "reservoir_hw.core.spec",
    "Experiment": "reservoir_hw.experiment",
    "Identity": "reservoir_hw.core.spec",
    "Reservoir": "reservoir_hw.core.reservoir",
    "ReservoirConfig": "reservoir_hw.core.reservoir_config",
    "ReservoirSpec": "reservoir_hw.core.spec",
    "Result": "reservoir_hw.experiment",
    "RidgeReadout": "reservoir_hw.readout",
    "open_reservoir": "reservoir_hw.core.reservoir_config",
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


__getattr__ = lazy_names(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
