"""Trained models as ONNX graphs in a bundle, cut where they cross a reservoir.

    from reservoir_hw.readout.export import export_model

    export_model(readout, "model.rhw", reservoirs=device)

Needs onnx and onnxruntime (`pip install 'reservoir-hw[export]'`), and torch for models that were trained by gradients.
docs/edge.md describes bundles and what runs them. Names are imported when they are first asked for (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.readout.export.c_header import c_header
    from reservoir_hw.readout.export.exporter import export_model, write_plan
    from reservoir_hw.readout.export.recording import record_series, record_text
    from reservoir_hw.readout.export.simulated_network import SimulatedNetwork
    from reservoir_hw.readout.export.torch_module import export_module
    from reservoir_hw.readout.export.whole_model import whole_plan

__all__ = [
    "SimulatedNetwork",
    "c_header",
    "export_model",
    "export_module",
    "record_series",
    "record_text",
    "whole_plan",
    "write_plan",
]

_HOME = {
    "SimulatedNetwork": ".simulated_network",
    "c_header": ".c_header",
    "export_model": ".exporter",
    "export_module": ".torch_module",
    "record_series": ".recording",
    "record_text": ".recording",
    "whole_plan": ".whole_model",
    "write_plan": ".exporter",
}


__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
