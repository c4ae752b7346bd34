"""A picture of a trace that says at a glance whether there is a reservoir in it. Needs the `report` extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.backends.replay import recorded_spec
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.figure_style import colours, new_figure, plain, whole_numbers
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import Region, StateStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TRACES = 8
_CHANNELS = 4
_DELAYS = 20
_VALUES = 1 << 23
_LABELS = 16
_CUT = 2.5


def plot(
    store: StateStore,
    *,
    dataset: str | None = None,
    sequence: int = 0,
    start: int = 0,
    steps: int = 300,
) -> Figure:
    """Inputs, node traces and an image of all states; beside them what the nodes have of the past inputs.

    The left column shows `steps` steps from `start` on of one sequence (by default the first of the first data set).
    The right column is about as much of that sequence as fits into memory, from `start` on: how the variance is
    spread over principal components, and the squared correlation of nodes with delayed inputs.

    Raises `ConfigurationError` for a part that was not recorded.
    """
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'reservoir-hw[report]'") from error
    spec = recorded_spec(store)
    found = store.dataset(dataset) if dataset is not None else next(iter(store.datasets.values()), None)
    if found is None:
        raise ConfigurationError(f"{store.path} holds no states yet")
    if not (0 <= sequence < found.sequences and 0 <= start < found.steps):
        raise ConfigurationError(
            f"{store.path}: data set {found.name} has the sequences 0 to {found.sequences - 1} of {found.steps} steps; "
            f"sequence {sequence}, step {start} is not among them"
        )
    stop = min(found.steps, start + max(steps, _VALUES // spec.nodes))
    u, x = (array[0].astype(np.float64) for array in found.read(Region(slice(sequence, sequence + 1), start, stop)))
    spread = x.std(axis=0)
    alive = np.ptp(x, axis=0) > 0
    standard = np.where(alive, (x - x.mean(axis=0)) / np.where(alive, spread, 1.0), 0.0)
    names = spec.node_names or tuple(map(str, range(spec.nodes)))
    memory = np.stack([_memory(u[:, c], standard) for c in range(u.shape[1])]).max(axis=0)

    figure = new_figure(13.0, 9.5)
    grid = figure.subplots(3, 2, width_ratios=(2.6, 1), height_ratios=(1, 2, 2.2))
    at = np.arange(start, min(start + steps, stop))
    shown = standard[: len(at)]
    _inputs(grid[0, 0], at, u, spec)
    _components(grid[0, 1], standard[:, alive])
    _nodes(grid[1, 0], at, shown, _selected(spread), names)
    _delays(grid[1, 1], memory[alive] if alive.any() else memory)
    _image(grid[2, 0], shown.T, (at[0] - 0.5, at[-1] + 0.5), names, "coolwarm", (-_CUT, _CUT), "standard deviations")
    grid[2, 0].set(xlabel="step", title="All states, each about its mean")
    _image(grid[2, 1], memory, (-0.5, memory.shape[1] - 0.5), names, "viridis", (0.0, 1.0), "r²")
    channels = "" if u.shape[1] == 1 else " (best channel)"
    grid[2, 1].set(xlabel="delay k (steps)", title=f"What each node has of u(t - k){channels}")
    whole_numbers(grid[2, 1].xaxis)
    grid[1, 0].sharex(grid[0, 0])
    for axes in grid.flat:
        axes.title.set_fontsize(10)
        axes.title.set_horizontalalignment("left")
        axes.title.set_x(0.0)
    figure.suptitle(_title(store, spec, found.name, sequence, stop - start), x=0.01, ha="left", fontsize=11)
    return figure


def _title(store: StateStore, spec: ReservoirSpec, dataset: str, sequence: int, steps: int) -> str:
    identity = spec.identity
    device = " ".join(filter(None, (identity.vendor, identity.model, identity.serial)))
    what = "simulation" if identity.simulated else "hardware"
    period = "" if spec.step_period_s is None else f", step period {spec.step_period_s:.3g} s"
    return (
        f"{device} ({what}): {spec.nodes:,} nodes{period}\n{store.path}, data set {dataset}, sequence {sequence}; "
        f"right column: {steps:,} steps"
    )


def _memory(u: np.ndarray, standard: np.ndarray) -> np.ndarray:
    """Squared correlation of each node with u(t - k): (nodes, delays)."""
    steps, delays = len(u), min(_DELAYS + 1, max(1, len(u) // 2))
    squared = np.zeros((standard.shape[1], delays))
    for k in range(delays):
        past, now = u[: steps - k] - u[: steps - k].mean(), standard[k:] - standard[k:].mean(axis=0)
        power = (past @ past) * (now**2).sum(axis=0)
        np.divide((past @ now) ** 2, power, out=squared[:, k], where=power > 0)
    return squared


def _selected(spread: np.ndarray) -> list[int]:
    """The liveliest node of each of a few equal parts: all regions are seen, no dead node in place of a live one."""
    return [int(part[spread[part].argmax()]) for part in np.array_split(np.arange(len(spread)), _TRACES) if len(part)]


def _inputs(axes: Axes, at: np.ndarray, u: np.ndarray, spec: ReservoirSpec) -> None:
    count = min(u.shape[1], _CHANNELS)
    for channel, colour in zip(range(count), colours(count), strict=True):
        label = spec.input_names[channel] if spec.input_names else f"channel {channel}"
        axes.plot(at, u[: len(at), channel], color=colour, linewidth=0.9, label=label)
    unit = "" if spec.input_unit == "1" else f" (1 = {spec.input_unit})"
    which = spec.input_names[0] if u.shape[1] == 1 and spec.input_names else ""
    axes.set(title=f"Input {which}{unit}" if u.shape[1] == 1 else f"{u.shape[1]} inputs, the first {count}{unit}")
    if count > 1:
        axes.legend(frameon=False, fontsize=8, ncols=count, loc="upper right")
    axes.margins(x=0)
    plain(axes)


def _nodes(axes: Axes, at: np.ndarray, shown: np.ndarray, selected: Sequence[int], names: Sequence[str]) -> None:
    for place, (node, colour) in enumerate(zip(selected, colours(len(selected)), strict=True)):
        axes.plot(at, shown[:, node].clip(-_CUT, _CUT) / (2 * _CUT) - place, color=colour, linewidth=0.9)
    axes.set_yticks([-place for place in range(len(selected))], [names[node] for node in selected], fontsize=8)
    axes.set(title=f"Some nodes (the tick is the mean of each, cut at ±{_CUT:g} standard deviations)")
    axes.margins(x=0)
    plain(axes)


def _components(axes: Axes, standard: np.ndarray) -> None:
    """How many independent signals the nodes carry."""
    if standard.shape[1] == 0:
        axes.set(title="No node moves")
        return
    variance = np.linalg.svd(standard - standard.mean(axis=0), compute_uv=False) ** 2
    share = variance / variance.sum()
    effective = 1 / (share**2).sum()
    axes.semilogy(np.arange(1, len(share) + 1), share, "o-", color="0.3", markersize=3, linewidth=1)
    if len(share) > 50:
        axes.set_xscale("log")
    axes.axvline(effective, color="tab:red", linewidth=1)
    axes.set(
        title=f"Variance by component, nodes scaled alike\n(red: effective dimension {effective:.1f})",
        xlabel="principal component",
    )
    axes.set_ylim(max(share[0] * 1e-8, share.min() / 2), 1.5)
    plain(axes)


def _delays(axes: Axes, memory: np.ndarray) -> None:
    """The best single node and the usual one, by delay."""
    for values, label, colour in (
        (memory.max(axis=0), "best node", "tab:blue"),
        (np.median(memory, axis=0), "median of the nodes", "0.6"),
    ):
        axes.plot(values, "o-", color=colour, markersize=4, linewidth=1, label=label)
    axes.set(title="Squared correlation of a node with u(t - k)", xlabel="delay k (steps)", ylim=(-0.02, 1.02))
    whole_numbers(axes.xaxis)
    axes.legend(frameon=False, fontsize=8)
    plain(axes)


def _image(
    axes: Axes,
    values: np.ndarray,
    extent: tuple[float, float],
    names: Sequence[str],
    colour_map: str,
    limits: tuple[float, float],
    label: str,
) -> None:
    picture: Any = axes.imshow(
        values,
        aspect="auto",
        interpolation="nearest" if len(values) <= 200 else "antialiased",
        cmap=colour_map,
        vmin=limits[0],
        vmax=limits[1],
        extent=(*extent, len(values) - 0.5, -0.5),
    )
    ticks = np.unique(np.linspace(0, len(values) - 1, min(len(values), _LABELS)).round().astype(int))
    axes.set_yticks(ticks, [names[int(tick)] for tick in ticks], fontsize=8)
    assert axes.figure is not None
    axes.figure.colorbar(picture, ax=axes, label=label, pad=0.01)
