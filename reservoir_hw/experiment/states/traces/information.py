"""What is in a trace: in words and tables for people, and as a picture."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.backends.replay import recorded_spec
from reservoir_hw.backends.simulated.memory import in_units
from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.figure_style import colours, new_figure, plain, whole_numbers
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import Dataset, Region, StateStore
from reservoir_hw.core.words import duration
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def describe(store: StateStore) -> dict[str, Any]:
    """All that is known about a trace without reading its states, ready for JSON.

    `written_steps` of a data set counts steps of one sequence, averaged over its sequences; `driven_s` is the time
    that the device was driven for, `started` when that began, both None where it is not known (an import). Where
    times are `damaged` or lost, which says how, `written_steps` of a trace that is unfinished is None too.
    `ended_early` says why a recording that nobody goes on with ended before its time, None where it did not.
    """
    recorded = store.facts
    try:
        spec, made_by, provenance = recorded["spec"], recorded["made_by"], recorded["provenance"]
        period, simulated = spec["step_period_s"], spec["identity"]["simulated"]
    except (KeyError, TypeError) as error:
        raise ConfigurationError(f"{store.path} is no trace: its attributes describe no device") from error
    return {
        "path": store.path,
        "made_by": made_by,
        "complete": store.complete,
        "ended_early": _ended_early(store),
        "committed_chunks": store.committed,
        "hardware": not simulated,
        "spec": spec,
        "datasets": _about_data_sets(store, period),
        "segments": store.segments,
        "provenance": provenance,
    }


def facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `describe` found about the trace as a whole, for people."""
    spec, identity, provenance = about["spec"], about["spec"]["identity"], about["provenance"]
    names = " ".join(filter(None, (identity["vendor"], identity["model"], identity["serial"])))
    seams = [segment["seam"] for segment in about["segments"] if segment.get("seam")]
    shown = [f"{s['kind']} ({', '.join(f'{k} {v}' for k, v in s.items() if k != 'kind')})" for s in seams]
    period = spec["step_period_s"]
    started = min((d["started"] for d in about["datasets"].values() if d["started"]), default=None)
    return [
        ("trace", about["path"]),
        ("device", f"{'hardware' if about['hardware'] else 'simulation'}: {names}"),
        ("fingerprint", identity["fingerprint"][:12]),
        ("made by", f"{about['made_by']}{', ' + provenance['time'] if 'time' in provenance else ''}"),
        *([] if started is None else [("driven from", started)]),
        ("state", _state(about)),
        ("inputs", _channels(spec["inputs"], spec["input_names"], spec["input_unit"])),
        ("nodes", _channels(spec["nodes"], spec["node_names"], spec["state_unit"])),
        ("step period", "unknown" if period is None else f"{period:.4g} s"),
        ("seams", "; ".join(shown) or "none"),
        *(("damaged", d["damaged"]) for d in about["datasets"].values() if d["damaged"]),
        *((key, provenance[key]) for key in ("sample", "operator", "notes") if provenance.get(key)),
        *(("on import", note) for note in provenance.get("notes_on_import", ())),
        *(("from", f"{file['file']}, sha256 {file['sha256'][:12]}") for file in provenance.get("files", ())),
    ]


def table(about: Mapping[str, Any]) -> Table:
    """The data sets, for people."""
    header = ["data set", "sequences", "steps", "written", "chunk", "dtype", "size", "duration", "driven", "rate"]
    body = [
        [
            name,
            f"{d['sequences']:,}",
            f"{d['steps']:,}",
            _written_of(d),
            f"{d['chunk'][0]} × {d['chunk'][1]:,}",
            d["dtype"],
            in_units(d["bytes"]),
            *("" if d[key] is None else duration(d[key]) for key in ("duration_s", "driven_s")),
            _rate(d),
        ]
        for name, d in about["datasets"].items()
    ]
    note = "chunk: sequences × steps in one file. duration: of one sequence. driven: time that driving took."
    return Table("Data sets", header, body, note)


def _ended_early(store: StateStore) -> str | None:
    status = store.segments[-1].get("status", "") if store.complete and store.segments else ""
    return status.removeprefix("failed: ") if status.startswith("failed") else None


def _state(about: Mapping[str, Any]) -> str:
    if not about["complete"]:
        return f"unfinished, {about['committed_chunks']} chunks are valid"
    return "complete" if about["ended_early"] is None else f"ended early, by {about['ended_early']}"


def _about_data_sets(store: StateStore, period: float | None) -> dict[str, dict[str, Any]]:
    datasets = store.datasets
    times = {name: _times(dataset, store) for name, dataset in datasets.items()}
    known = sum(int(np.isfinite(timing[..., 0]).sum()) for timing, _ in times.values())
    if not store.complete and known < store.committed and not any(damaged for _, damaged in times.values()):
        # Each chunk that counts had its time; where those that are missing belong nobody can tell.
        lost = f"{store.path}: times of {store.committed - known} chunks are lost"
        times = {
            name: (timing, None if np.isfinite(timing[..., 0]).all() else lost) for name, (timing, _) in times.items()
        }
    return {name: _about_data_set(dataset, store, period, *times[name]) for name, dataset in datasets.items()}


def _times(dataset: Dataset, store: StateStore) -> tuple[np.ndarray, str | None]:
    """When the chunks were driven, as far as it is known, and what is wrong with that."""
    try:
        timing, given_up = dataset.timing, dataset.times_given_up
    except ConfigurationError as error:
        return np.full((1, 1, 2), np.nan), str(error)
    if given_up is None:
        return timing, None
    return timing, f"{store.path}: times of {dataset.name} were damaged ({given_up}), not all are known any more"


def _about_data_set(
    dataset: Dataset, store: StateStore, period: float | None, timing: np.ndarray, damaged: str | None
) -> dict[str, Any]:
    starts, durations = np.moveaxis(timing, -1, 0)
    known = np.isfinite(starts)
    steps = dataset.steps
    return {
        "sequences": dataset.sequences,
        "steps": steps,
        "written_steps": steps if store.complete else None if damaged else _written(dataset, known),
        "chunk": [dataset.group, dataset.chunk_steps],
        "dtype": str(dataset.states.dtype),
        "bytes": dataset.states.nbytes + dataset.inputs.nbytes,
        "duration_s": None if period is None else steps * period,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(starts[known].min())) if known.any() else None,
        "driven_s": float(durations[known].sum()) if known.any() else None,
        "facts": dataset.facts,
        "damaged": damaged,
    }


def _written(dataset: Dataset, known: np.ndarray) -> float:
    """Steps that a sequence has on average."""
    driven = (at for at in dataset.regions() if known[at.rows.start // dataset.group, at.start // dataset.chunk_steps])
    return sum((at.rows.stop - at.rows.start) * (at.stop - at.start) for at in driven) / dataset.sequences


def _written_of(dataset: Mapping[str, Any]) -> str:
    written = dataset["written_steps"]
    return "unknown" if written is None else "all" if written == dataset["steps"] else f"{written:,.10g}"


def _rate(dataset: Mapping[str, Any]) -> str:
    if not dataset["driven_s"] or dataset["damaged"]:
        return ""
    return f"{dataset['sequences'] * dataset['written_steps'] / dataset['driven_s']:,.3g} steps/s"


def _channels(count: int, names: list[str], unit: str) -> str:
    shown = ", ".join(names if len(names) < 6 else [*names[:4], f"... {names[-1]}"])
    return f"{count:,}{f' ({shown})' if names else ''}{f', unit {unit}' if unit != '1' else ''}"


# ---- A picture of a trace that says at a glance whether there is a reservoir in it. Needs the `report` extra.


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
    with extra("report", "figures need matplotlib"):
        import matplotlib as _  # noqa: F401
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
    # The liveliest node of each of a few equal parts: all regions are seen, no dead node in place of a live one.
    parts = [part for part in np.array_split(np.arange(spec.nodes), _TRACES) if len(part)]
    _nodes(grid[1, 0], at, shown, [int(part[spread[part].argmax()]) for part in parts], names)
    _delays(grid[1, 1], memory[alive] if alive.any() else memory)
    _image(grid[2, 0], shown.T, start, names, "coolwarm", (-_CUT, _CUT), "standard deviations")
    grid[2, 0].set(xlabel="step", title="All states, each about its mean")
    _image(grid[2, 1], memory, 0, names, "viridis", (0.0, 1.0), "r²")
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
    axes: Axes, values: np.ndarray, first: int, names: Sequence[str], cmap: str, limits: tuple[float, float], label: str
) -> None:
    """Values (nodes, columns), of which the columns are counted from `first` on."""
    picture: Any = axes.imshow(
        values,
        aspect="auto",
        interpolation="nearest" if len(values) <= 200 else "antialiased",
        cmap=cmap,
        vmin=limits[0],
        vmax=limits[1],
        extent=(first - 0.5, first + values.shape[1] - 0.5, len(values) - 0.5, -0.5),
    )
    ticks = np.unique(np.linspace(0, len(values) - 1, min(len(values), _LABELS)).round().astype(int))
    axes.set_yticks(ticks, [names[int(tick)] for tick in ticks], fontsize=8)
    assert axes.figure is not None
    axes.figure.colorbar(picture, ax=axes, label=label, pad=0.01)
