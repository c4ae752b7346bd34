"""What a training asks of its reservoirs, said before it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.words import duration
from reservoir_hw.readout.training.examples import of_corpus
from reservoir_hw.readout.training.options import TrainingOptions


@dataclass(frozen=True)
class DriveEstimate:
    """Device time of a training.

    `layers` reservoirs are driven with `steps_per_layer` time steps each (sequences that go side by side count once).
    `seconds` is Σ over the layers of steps × their declared step period and of the resets; None where a device
    declares none (a simulation).
    """

    training_steps: int
    layers: int
    steps_per_layer: int
    resets_per_layer: int
    seconds: float | None

    @property
    def device_steps(self) -> int:
        """Time steps over all layers."""
        return self.layers * self.steps_per_layer

    def __str__(self) -> str:
        time = "no step period is declared" if self.seconds is None else f"{duration(self.seconds)} of device time"
        what = f"{self.training_steps:,} training steps" if self.training_steps else "harvest"
        return (
            f"{what}: {self.steps_per_layer:,} time steps × {self.layers} reservoir layers = {self.device_steps:,} "
            f"device steps, {time}"
        )


def estimate_training(
    model: Any, corpus_train: Any, corpus_valid: Any = None, *, options: TrainingOptions
) -> DriveEstimate:
    """What `train` will ask of the model's reservoirs, which are driven in every step and evaluation.

    Documents count with their mean length.
    """
    examples = of_corpus(corpus_train, options, vocabulary=None, name="corpus_train", learned=True)
    steps = examples.steps(options)
    calls = [options.batch] * (steps * options.accumulate)
    if corpus_valid is not None:
        valid = of_corpus(corpus_valid, options, vocabulary=None, name="corpus_valid")
        every = options.evaluation_steps or steps
        evaluations = steps // every + (steps % every > 0)
        full, rest = divmod(len(valid.evaluated(options.evaluation_windows)), options.batch)
        calls += ([options.batch] * full + [rest] * (rest > 0)) * evaluations
    return estimate_drives(model, calls, round(float(np.mean(examples.lengths))), steps)


def estimate_drives(model: Any, calls: Sequence[int], length: int, training_steps: int = 0) -> DriveEstimate:
    """The cost of driving the model's reservoirs in each call with so many sequences of this length, side by side."""
    specs = [layer.reservoir.spec for layer in model.reservoir_layers]
    drives = {spec.max_batch: sum(math.ceil(batch / (spec.max_batch or batch)) for batch in calls) for spec in specs}
    seconds = sum(drives[s.max_batch] * (length * (s.step_period_s or 0.0) + s.reset_time_s) for s in specs)
    most = max(drives.values(), default=0)
    return DriveEstimate(
        training_steps=training_steps,
        layers=len(specs),
        steps_per_layer=most * length,
        resets_per_layer=most,
        seconds=None if any(spec.step_period_s is None for spec in specs) else seconds,
    )
