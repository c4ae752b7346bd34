"""Figures of a run of the suite. They need the extra `report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, one_panel
from reservoir_hw.measures.comparison import WORTH_SEEING
from reservoir_hw.testing.plan import Statement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST = 1e-6
_NODES = 4


def comparisons(statements: Sequence[Statement]) -> Figure:
    """For each comparison the difference that was found, and the smallest that would have been seen."""
    rows = [(one, found) for one in statements for found in one.comparisons]
    figure, axes = one_panel(8, 1.2 + 0.28 * len(rows))
    for height, (statement, found) in enumerate(reversed(rows)):
        smallest, difference = max(found["smallest"], _LEAST), max(found["difference"], _LEAST)
        axes.plot([_LEAST, smallest], [height, height], color="0.85", linewidth=6, solid_capstyle="butt", zorder=1)
        axes.plot(difference, height, "o", color="crimson" if statement.bad else "black", markersize=5, zorder=2)
    axes.axvline(WORTH_SEEING, color="0.4", linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [one.title.replace("_", " ") for one, _ in reversed(rows)])
    axes.set_xlabel("difference between the two conditions (standard deviations of the states)")
    axes.set_title(
        "Dot: found (red where the statement failed; 0 is drawn at the left edge). Grey: too small to be seen.\n"
        f"Dashed: {WORTH_SEEING:g}, which every comparison must be able to see",
        loc="left",
        fontsize=9,
    )
    return figure


def standard_drive(states: np.ndarray) -> Figure:
    """A few nodes over time: (repeats, time, nodes), the repeats over each other."""
    figure, axes = one_panel(8, 3)
    nodes = np.unique(np.linspace(0, states.shape[2] - 1, _NODES).astype(int))
    for node, colour in zip(nodes, colours(len(nodes)), strict=True):
        for number, repeat in enumerate(states):
            axes.plot(repeat[:, node], color=colour, linewidth=1, alpha=0.7, label=None if number else f"node {node}")
    axes.set_xlabel("time step")
    axes.set_ylabel("state")
    axes.set_title(f"Response to the standard drive, {len(states)} times", loc="left", fontsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure
