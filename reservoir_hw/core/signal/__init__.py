"""The signal chain of a time-multiplexed reservoir, from the values of a task to a waveform and back.

    inputs -> Mask -> Quantiser (DAC) -> SampleAndHold -> Scaling (to volts) -> device
           -> LowPass -> Quantiser (ADC) -> Sampler -> average -> states

A simulated delay loop uses the same objects as a bench with generator and digitizer: the mask and the timing that
were simulated are what the generator plays. Each is a section of a configuration as it stands, but for `Mask`, which
`MaskConfig` draws or reads from a file, and `average`, a function. `align` finds a burst in a record, by markers.
"""

from reservoir_hw.core.signal._mask import Mask, MaskConfig
from reservoir_hw.core.signal._timing import (
    Alignment,
    Average,
    Quantiser,
    SampleAndHold,
    Scaling,
    Template,
    align,
    average,
    marker,
)

__all__ = [
    "Alignment",
    "Average",
    "Mask",
    "MaskConfig",
    "Quantiser",
    "SampleAndHold",
    "Scaling",
    "Template",
    "align",
    "average",
    "marker",
]
