"""What is in a trace."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.store import Dataset, StateStore
from reservoir_hw.tasks.task import Table


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
        "datasets": _described(store, period),
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
            _size(d["bytes"]),
            _seconds(d["duration_s"]),
            _seconds(d["driven_s"]),
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


def _described(store: StateStore, period: float | None) -> dict[str, dict[str, Any]]:
    datasets = store.datasets
    times = {name: _times(dataset, store) for name, dataset in datasets.items()}
    known = sum(int(np.isfinite(timing[..., 0]).sum()) for timing, _ in times.values())
    if not store.complete and known < store.committed and not any(damaged for _, damaged in times.values()):
        # Each chunk that counts had its time; where those that are missing belong nobody can tell.
        lost = f"{store.path}: times of {store.committed - known} chunks are lost"
        times = {
            name: (timing, None if np.isfinite(timing[..., 0]).all() else lost) for name, (timing, _) in times.items()
        }
    return {name: _describe(dataset, store, period, *times[name]) for name, dataset in datasets.items()}


def _times(dataset: Dataset, store: StateStore) -> tuple[np.ndarray, str | None]:
    """When the chunks were driven, as far as it is known, and what is wrong with that."""
    try:
        timing, given_up = dataset.timing, dataset.times_given_up
    except ConfigurationError as error:
        return np.full((1, 1, 2), np.nan), str(error)
    if given_up is None:
        return timing, None
    return timing, f"{store.path}: times of {dataset.name} were damaged ({given_up}), not all are known any more"


def _describe(
    dataset: Dataset, store: StateStore, period: float | None, timing: np.ndarray, damaged: str | None
) -> dict[str, Any]:
    starts, durations = np.moveaxis(timing, -1, 0)
    known = np.isfinite(starts)
    steps = dataset.steps
    written = steps if store.complete else None if damaged else _written(dataset, known)
    return {
        "sequences": dataset.sequences,
        "steps": steps,
        "written_steps": written,
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
    steps = 0
    for place in dataset.regions():
        if known[place.rows.start // dataset.group, place.start // dataset.chunk_steps]:
            steps += (place.rows.stop - place.rows.start) * (place.stop - place.start)
    return steps / dataset.sequences


def _written_of(dataset: Mapping[str, Any]) -> str:
    written = dataset["written_steps"]
    return "unknown" if written is None else "all" if written == dataset["steps"] else f"{written:,.10g}"


def _rate(dataset: Mapping[str, Any]) -> str:
    if not dataset["driven_s"] or dataset["damaged"]:
        return ""
    return f"{dataset['sequences'] * dataset['written_steps'] / dataset['driven_s']:,.3g} steps/s"


def _channels(count: int, names: list[str], unit: str) -> str:
    shown = ", ".join(names[:4]) + (
        f", ... {names[-1]}" if len(names) > 5 else ", " + names[4] if len(names) == 5 else ""
    )
    return f"{count:,}{f' ({shown})' if names else ''}{f', unit {unit}' if unit != '1' else ''}"


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
