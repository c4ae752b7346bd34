"""A trained model at work beside its reservoirs, where there is no torch: numpy and onnxruntime.

    from reservoir_hw.readout.edge import EdgeRunner

    with EdgeRunner("model.rhw", "bench.yaml") as runner:
        outputs = runner.run(inputs)

docs/edge.md describes bundles, and how they are made.
"""

from reservoir_hw.readout.edge.bundle import Bundle
from reservoir_hw.readout.edge.runner import EdgeRunner

__all__ = ["Bundle", "EdgeRunner"]
