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
    from reservoir_hw.readout.export.exporter import export_model as export_model
    from reservoir_hw.readout.export.headers import c_header as c_header
    from reservoir_hw.readout.export.recording import record_series as record_series
    from reservoir_hw.readout.export.recording import record_text as record_text
    from reservoir_hw.readout.export.segments import whole_plan as whole_plan
    from reservoir_hw.readout.export.torch_module import export_module as export_module

__getattr__, __dir__ = lazy_names(__name__)
