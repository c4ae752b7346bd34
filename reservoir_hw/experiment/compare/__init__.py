"""Two devices side by side: driven with the same, node by node, measure by measure, and at a task."""

from reservoir_hw.experiment.compare.compare import COMPARED, compare
from reservoir_hw.experiment.compare.result import Comparison

__all__ = ["COMPARED", "Comparison", "compare"]
