"""One export at work: what is exported, where to, and what every kind of model needs for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.experiment.deploy.quantised import Metrics
from reservoir_hw.experiment.deploy.trained import TrainedRow
from reservoir_hw.experiment.run.open_device import OpenDevice
from reservoir_hw.experiment.states.progress import Progress, StepCounter
from reservoir_hw.readout.edge.manifest import Loss
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from reservoir_hw.readout.edge.manifest import Manifest
    from reservoir_hw.readout.export.graph import Plan, Values


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


RECORDED_STEPS = 300
"""Of the task's test, on which the exported graphs are compared with the model."""

REPLAYED = "(replayed)"
"""What a replay puts behind the model of the device that it stands for."""


@dataclass
class ExportJob:
    """Which row is exported, where to and how."""

    row: TrainedRow
    path: Path
    precision: Precision
    target: Target
    progress: Progress | None
    device: OpenDevice = field(default_factory=OpenDevice)
    """Opens the reservoir, or has it open already."""
    accept_loss: bool = False
    """Whether int8 may cost more than is harmless."""

    def say(self, what: str, steps: int = 0) -> Callable[[int], None]:
        """Begin something that takes this many steps, and tell the result."""
        counter = StepCounter(self.progress, steps)
        counter.say(what)
        return counter.add

    def write_bundle(
        self, plan: Plan, devices: Sequence[Reservoir], recorded: Values | None, metrics: Metrics, **more: Any
    ) -> ExportResult:
        """Write the bundle and say what is in it; `more` is for `export_model`. Without devices there is no probe."""
        from reservoir_hw.readout.edge.bundle import Bundle
        from reservoir_hw.readout.export.exporter import export_model

        self.say("writing")
        manifest = export_model(
            plan,
            self.path,
            reservoirs=devices,
            precision=self.precision,
            recorded=recorded,
            probe=bool(devices),
            metrics=metrics,
            series=self.row.series,
            facts=_facts_of(self.row),
            **more,
        )
        with Bundle.open(self.path) as bundle:
            parameters = [
                sum(array.size for array in bundle.weights_of(number).values())
                for number in range(len(manifest.segments))
            ]
            size = sum(bundle.sizes.values())
        return ExportResult(self.path, self.row.label, self.target, self.precision, size, manifest, parameters, metrics)


def check_devices(row: TrainedRow, devices: Sequence[Reservoir]) -> None:
    """Raise `ConfigurationError` unless these are the devices of the training, and can be driven with anything."""
    wanted = row.reservoirs
    if len(devices) != len(wanted):
        raise ConfigurationError(f"the model was trained on {len(wanted)} reservoirs, and {len(devices)} are given")
    for number, (device, spec) in enumerate(zip(devices, wanted, strict=True)):
        here, there = device.spec.identity, spec.identity
        if here.model.endswith(REPLAYED):
            raise ConfigurationError(
                f"reservoir {number}, {here.model}, is a recording: it answers nothing but what was recorded, and an "
                "export drives more; name the recorded device (--reservoir FILE), or export without one (--offline)"
            )
        if here.fingerprint != there.fingerprint:
            raise ConfigurationError(
                f"reservoir {number} is {here.vendor} {here.model} {here.serial}".rstrip()
                + f", fingerprint {here.fingerprint[:12]}, and row {row.number} of {row.folder} was trained on "
                + f"{there.vendor} {there.model} {there.serial}".rstrip()
                + f", {there.fingerprint[:12]}: open that one (--reservoir), export without a device (--offline), or "
                "run the experiment on this one"
            )


def carried_at_rest(plan: Plan, recorded: Values | None) -> Values | None:
    """The recorded input of a whole model, from rest."""
    if recorded is None:
        return None
    inputs = recorded[plan.input.name]
    return {
        plan.input.name: inputs,
        **{one.reads: np.zeros((len(inputs), *one.shape), one.dtype) for one in plan.carried},
    }


def _facts_of(row: TrainedRow) -> dict[str, Any]:
    """What the bundle says about the run."""
    config = row.point.config
    return {
        "run": {
            "title": config.title,
            "label": row.label,
            "row": row.number,
            "time": row.provenance.get("time"),
            "configuration_sha256": row.provenance.get("configuration_sha256"),
            "task": config.task.kind,
            "readout": config.readout.kind,
        }
    }
