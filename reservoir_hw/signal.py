"""The signal chain under the name that users know: masks, converters, timing (`reservoir_hw.core.signal`)."""

from reservoir_hw.core.signal import *  # noqa: F403
from reservoir_hw.core.signal import __all__  # noqa: F401
