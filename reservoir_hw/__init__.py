"""Hardware-in-the-loop framework for physical reservoir computing."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names
from reservoir_hw.core.threads import wait_shortly

if TYPE_CHECKING:
    from reservoir_hw.core.configuration import Config as Config
    from reservoir_hw.core.reservoir import Reservoir as Reservoir
    from reservoir_hw.core.reservoir_config import ReservoirConfig as ReservoirConfig
    from reservoir_hw.core.reservoir_config import open_reservoir as open_reservoir
    from reservoir_hw.core.spec import Counters as Counters
    from reservoir_hw.core.spec import Identity as Identity
    from reservoir_hw.core.spec import ReservoirSpec as ReservoirSpec
    from reservoir_hw.experiment import Experiment as Experiment
    from reservoir_hw.experiment import Result as Result
    from reservoir_hw.experiment import load_model as load_model
    from reservoir_hw.experiment.model import ReservoirModel as ReservoirModel
    from reservoir_hw.readout import RidgeReadout as RidgeReadout

__version__ = "0.1.0"

wait_shortly()

__getattr__, __dir__ = lazy_names(__name__)
