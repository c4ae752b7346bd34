"""`kind: pymeasure`: instruments that PyMeasure has a class for. PyMeasure is imported when they are built."""

from reservoir_hw.drivers.visa.pymeasure.connection import PymeasureConfig
from reservoir_hw.drivers.visa.pymeasure.devices import PymeasureDigitizerConfig, PymeasureGeneratorConfig

__all__ = ["PymeasureConfig", "PymeasureDigitizerConfig", "PymeasureGeneratorConfig"]
