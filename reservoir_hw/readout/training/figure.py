"""The loss over the steps, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from reservoir_hw.core.files import replacing
from reservoir_hw.readout.training.history import Row


def can_draw() -> bool:
    """Whether matplotlib (the `report` extra) is there."""
    return find_spec("matplotlib") is not None


def draw_losses(rows: Sequence[Row], path: Path) -> None:
    """Training and validation loss over the steps, as PNG."""
    from reservoir_hw.core.figure_style import colours, new_figure, plain

    figure = new_figure(7.5, 3.8)
    axes = figure.subplots()
    training, validation = colours(2)
    axes.plot([row.step for row in rows], [row.loss for row in rows], color=training, lw=1.2, label="training")
    evaluated = [(row.step, row.validation_loss) for row in rows if row.validation_loss is not None]
    if evaluated:
        axes.plot(*zip(*evaluated, strict=True), color=validation, marker="o", ms=4, lw=1.2, label="validation")
        best = min(evaluated, key=lambda pair: pair[1])
        axes.axhline(best[1], color=validation, lw=0.8, ls=":", label=f"best validation {best[1]:.4f}")
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy (nats per token)")
    axes.legend(frameon=False)
    plain(axes)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=150, format="png")
