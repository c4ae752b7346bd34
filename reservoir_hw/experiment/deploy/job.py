"""One export: what is exported, where to, what came of it, and what every kind of model needs for it."""

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
from reservoir_hw.readout.edge.bundle import Bundle, describe, segments_of
from reservoir_hw.readout.edge.manifest import Loss
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from reservoir_hw.readout.edge.manifest import Manifest
    from reservoir_hw.readout.export.graph import Plan, Values


Precision = Literal["fp32", "int8"]
Target = Literal["segments", "whole", "c"]


@dataclass
class Export:
    """Which row is exported, where to and how, and what came of it.

    `device` opens the reservoir, or has it open already; with `accept_loss` int8 may cost more than is harmless.
    """

    row: TrainedRow
    path: Path
    precision: Precision
    target: Target
    progress: Progress | None = None
    device: OpenDevice = field(default_factory=OpenDevice)
    accept_loss: bool = False
    bytes: int = 0
    manifest: Manifest | None = None
    """That of a bundle, None for a C header."""
    about: dict[str, Any] = field(default_factory=dict)
    """The bundle as `readout.edge.bundle.describe` says it."""
    metrics: Metrics = field(default_factory=dict)
    loss: Loss | None = None
    """What int8 costs."""
    notes: list[str] = field(default_factory=list)
    prompt: str = "TEXT"
    """What a language model can continue, for instance."""
    command: str = ""
    """What to type next."""

    @property
    def label(self) -> str:
        """That of the row."""
        return self.row.label

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        found: dict[str, Any] = {
            "path": str(self.path),
            **{name: getattr(self, name) for name in ("label", "target", "precision", "bytes", "metrics")},
            "loss": None if self.loss is None else self.loss.model_dump(mode="json"),
            "notes": self.notes,
            "command": self.command,
        }
        if self.manifest is not None:
            found |= {
                "model": self.manifest.model,
                "fingerprints": [slot.fingerprint for slot in self.manifest.slots],
                "parameters": [segment["parameters"] for segment in self.about["segments"]],
                "certificate": self.manifest.certificate.model_dump(mode="json"),
            }
        return found

    def tables(self) -> list[Table]:
        """Segments with their certificate, and the metrics of the task before and after."""
        tables = []
        if self.manifest is not None:
            tables.append(segments_of(self.about, f"{self.manifest.model}, {self.manifest.precision}"))
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

    def say(self, what: str, steps: int = 0) -> Callable[[int], None]:
        """Begin something that takes this many steps, and tell the result."""
        counter = StepCounter(self.progress, steps)
        counter.say(what)
        return counter.add

    def write_bundle(self, plan: Plan, devices: Sequence[Reservoir], recorded: Values | None, **more: Any) -> None:
        """Write the bundle and say what is in it; `more` is for `export_model`. Without devices there is no probe."""
        from reservoir_hw.readout.export.exporter import export_model

        self.say("writing")
        config = self.row.point.config
        self.manifest = export_model(
            plan,
            self.path,
            reservoirs=devices,
            precision=self.precision,
            recorded=recorded,
            probe=bool(devices),
            metrics=self.metrics,
            loss=self.loss,
            series=self.row.series,
            facts={
                "run": {
                    "title": config.title,
                    "label": self.label,
                    "row": self.row.number,
                    "time": self.row.provenance.get("time"),
                    "configuration_sha256": self.row.provenance.get("configuration_sha256"),
                    "task": config.task.kind,
                    "readout": config.readout.kind,
                }
            },
            **more,
        )
        with Bundle.open(self.path) as bundle:
            self.about = describe(bundle)
        self.bytes = self.about["bytes"]


RECORDED_STEPS = 300
"""Of the task's test, on which the exported graphs are compared with the model."""

REPLAYED = "(replayed)"
"""What a replay puts behind the model of the device that it stands for."""


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
                f"reservoir {number} is {here.name}, fingerprint {here.fingerprint[:12]}, and row {row.number} of "
                f"{row.folder} was trained on {there.name}, {there.fingerprint[:12]}: open that one (--reservoir), "
                "export without a device (--offline), or run the experiment on this one"
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
