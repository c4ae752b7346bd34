"""The look that the figures of tasks share. Needs the `report` extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def colours(count: int) -> list[tuple[float, ...]]:
    """Distinct colours that also differ in lightness."""
    from matplotlib import colormaps

    return [colormaps["viridis"](at) for at in np.linspace(0.0, 0.88, count)]


def plain(axes: Axes) -> None:
    """Take away the frame lines that carry no scale."""
    axes.spines[["top", "right"]].set_visible(False)
