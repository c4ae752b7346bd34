"""The look that all figures share. Needs the `report` extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this size in inches with one plain set of axes."""
    figure, grid = panels(width, height, 1, 1, squeeze=False)
    return figure, grid.item()


def panels(width: float, height: float, rows: int, columns: int, **options: Any) -> tuple[Figure, Any]:
    """A figure of this size in inches with several plain sets of axes; `options` are those of `Figure.subplots`."""
    figure = new_figure(width, height)
    grid = figure.subplots(rows, columns, **options)
    for axes in grid.flat:
        plain(axes)
    return figure, grid


def colours(count: int) -> list[tuple[float, ...]]:
    """Distinct colours that also differ in lightness."""
    from matplotlib import colormaps

    return [colormaps["viridis"](at) for at in np.linspace(0.0, 0.88, count)]


def plain(axes: Axes) -> None:
    """Take away the frame lines that carry no scale."""
    axes.spines[["top", "right"]].set_visible(False)


def describe(
    axes: Axes, title: str, x: str, y: str = "", *, counted: bool = False, legend: dict[str, Any] | None = None
) -> None:
    """Title and labels; `counted`: x has whole numbers alone; `legend`: there is one, with these options."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, loc="left")
    if counted:
        whole_numbers(axes.xaxis)
    if legend is not None:
        axes.legend(frameon=False, **legend)


def whole_numbers(*axes: Axis) -> None:
    """Ticks at whole numbers alone, for what is counted: nodes, delays, components."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
