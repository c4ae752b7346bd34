"""Stores as a recording leaves them, of given inputs and states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.core.store import StateStore

FILM = Identity(vendor="lab", model="film", simulated=False)


def recorded(
    path: Path,
    batches: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    chunk: int = 16,
    written: int | None = None,
    group: int | None = None,
    **spec: Any,
) -> StateStore:
    """A trace with one data set for each (inputs, states); unfinished after `written` chunks of the last."""
    width, nodes = batches[0][0].shape[2], batches[0][1].shape[2]
    declared = ReservoirSpec(**{"inputs": width, "nodes": nodes, "identity": FILM, "step_period_s": 0.5, **spec})
    facts = {"made_by": "record", "spec": declared.model_dump(mode="json"), "provenance": {"operator": "ada"}}
    made = StateStore.create(path, facts)
    places = 0
    for number, (u, x) in enumerate(batches):
        dataset = made.add(
            f"{number:03d}", sequences=len(u), inputs=width, nodes=nodes, chunk_steps=chunk, steps=u.shape[1],
            group=group, dtype=declared.dtype,
        )  # fmt: skip
        last = number == len(batches) - 1
        for place in list(dataset.regions())[: written if last else None]:
            at = (place.rows, slice(place.start, place.stop))
            dataset.write(place, u[at], x[at], timing=(1e9 + place.start, 2.0))
            places += 1
    made.commit(places)
    made.close_segment([{"seam": {"kind": "driven again", "place": 1, "split": "train"}}], complete=written is None)
    return made
