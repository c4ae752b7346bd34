"""What an export has written, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reservoir_hw.experiment.deploy.quantised import Metrics
from reservoir_hw.readout.edge.manifest import Loss
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from reservoir_hw.readout.edge.manifest import Manifest

Precision = Literal["fp32", "int8"]
Target = Literal["segments", "whole", "c"]


@dataclass
class ExportResult:
    """What was written, and where. `manifest` is that of a bundle, None for a C header."""

    path: Path
    label: str
    target: Target
    precision: Precision
    bytes: int
    manifest: Manifest | None = None
    parameters: list[int] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    loss: Loss | None = None
    """What int8 costs."""
    notes: list[str] = field(default_factory=list)
    prompt: str = "TEXT"
    """What a language model can continue, for instance."""
    command: str = ""
    """What to type next."""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        found: dict[str, Any] = {
            "path": str(self.path),
            "label": self.label,
            "target": self.target,
            "precision": self.precision,
            "bytes": self.bytes,
            "metrics": self.metrics,
            "loss": None if self.loss is None else self.loss.model_dump(mode="json"),
            "notes": self.notes,
            "command": self.command,
        }
        if self.manifest is not None:
            found |= {
                "model": self.manifest.model,
                "fingerprints": [slot.fingerprint for slot in self.manifest.slots],
                "parameters": self.parameters,
                "certificate": self.manifest.certificate.model_dump(mode="json"),
            }
        return found

    def tables(self) -> list[Table]:
        """Segments with their certificate, and the metrics of the task before and after."""
        tables = []
        if self.manifest is not None:
            tables.append(_segments(self.manifest, self.parameters))
        if self.metrics:
            rows = [
                [name, f"{pair['before']:.4f}", f"{pair['after']:.4f}", f"{pair['after'] - pair['before']:+.4f}"]
                for name, pair in self.metrics.items()
            ]
            bits = "weights in 7 bits" if self.manifest is not None else "weights and states in 8 bits"
            tables.append(
                Table(f"What int8 costs ({bits})", ["metric of the test", "before", "int8", "difference"], rows)
            )
        return tables


def _segments(manifest: Manifest, parameters: Sequence[int]) -> Table:
    rows = []
    for number, (segment, certified) in enumerate(zip(manifest.segments, manifest.certificate.segments, strict=True)):
        rows.append(
            [
                str(number),
                ", ".join(value.name for value in segment.reads),
                ", ".join(value.name for value in segment.gives),
                f"{parameters[number]:,}",
                f"{manifest.files[segment.graph].bytes:,}",
                f"{certified.error:.1e}",
                "-" if certified.limit is None else f"{certified.limit:.1e}",
            ]
        )
    return Table(
        f"{manifest.model}, {manifest.precision}",
        ["segment", "reads", "gives", "parameters", "bytes of the graph", "largest error", "limit"],
        rows,
        "Errors and limits are in standard deviations of the output.",
    )
