"""Going on with a harvest that was interrupted: what counts, what is driven again, and what may have changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.provenance import plain
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.core.store import Dataset, StateStore, is_damage
from reservoir_hw.experiment.states.plan import Burst, DriveChunk

Changes: TypeAlias = dict[str, tuple[Any, Any]]
"""By name: what it was, and what it is now."""

_IDENTITY = ("vendor", "model", "serial", "firmware", "content", "fingerprint")


def changed_identity(began: Identity, now: Identity) -> Changes:
    """Nothing if it is the same device."""
    if now.fingerprint == began.fingerprint:
        return {}
    pairs = {name: (getattr(began, name), getattr(now, name)) for name in _IDENTITY}
    changes = {name: (before, after) for name, (before, after) in pairs.items() if before != after}
    # The fingerprint is made of the others: it says something only where they are the same.
    return {name: pair for name, pair in changes.items() if name != "fingerprint" or len(changes) == 1}


def changed_settings(before: Mapping[str, Any], reservoir: Reservoir) -> Changes:
    """Settings of which the device does not report the same as before."""
    now = plain(reservoir.read_back())
    pairs = {name: (before.get(name), now.get(name)) for name in [*before, *now]}
    return {name: pair for name, pair in pairs.items() if not _same(*pair, reservoir.tolerances.get(name, 0.0))}


def in_words(changes: Changes) -> str:
    """For people."""
    return ", ".join(f"{name} was {before!r} and is {now!r} now" for name, (before, now) in changes.items())


def _same(before: Any, now: Any, tolerance: float) -> bool:
    numbers = all(isinstance(one, int | float) for one in (before, now))
    return abs(before - now) <= tolerance if numbers else before == now


log = logging.getLogger(__name__)


def changes_since(store: StateStore, reservoir: Reservoir, accept: str | None) -> Changes:
    """What the device reports otherwise than when the store was written last.

    Raises `ConfigurationError` if there is something, unless it is accepted for a reason.
    """
    began, now = (
        {name: spec[name] for name in ("inputs", "nodes", "dtype")}
        for spec in (store.facts["spec"], reservoir.spec.model_dump())
    )
    if began != now:
        raise ConfigurationError(f"{store.path} holds states of a device with {began}; this one has {now}")
    last = store.segments[-1] if store.segments else {"identity": store.facts["spec"]["identity"]}
    changes = changed_identity(Identity(**last["identity"]), reservoir.spec.identity)
    if "read_back" in last:
        changes |= changed_settings(last["read_back"], reservoir)
    if changes and accept is None:
        raise ConfigurationError(
            f"{store.path} was harvested on another device, or with other settings: {in_words(changes)}; set it back, "
            "or go on with --accept-change REASON, which the store then tells (for kind: python, `volatile` and "
            "`tolerance` are for what changes by nature)"
        )
    return changes


def about_interruptions(spec: ReservoirSpec, bursts: Sequence[Burst]) -> str:
    """A sentence to say before a harvest that would lose much by an interruption, or nothing."""
    if spec.snapshot or spec.memory_steps or all(len(burst.chunks) == 1 for burst in bursts):
        return ""
    longest = max(sum(chunk.inputs.shape[1] for chunk in burst.chunks) for burst in bursts)
    return (
        "this device declares neither memory_steps nor a snapshot: after an interruption it begins again with the "
        f"sequence that was interrupted, here up to {longest:,} steps; memory_steps in the reservoir file makes it go "
        "on after the last chunk (`reservoir-hw device memory FILE` measures it)"
    )


def what_is_safe(spec: ReservoirSpec, kept: Sequence[tuple[int, int]], done: int, path: str) -> str:
    """How the harvest will go on, for whoever has interrupted it."""
    begin = done if spec.snapshot or spec.memory_steps else _begin_of_sequence(kept, done)
    again = f"; {done - begin} more are driven again, with the rest of their sequence" if begin < done else ""
    on = "goes on from there" if begin else "begins again"
    return f"{begin} of {len(kept)} chunks are safe in {path}{again}; the same command {on}"


def take_up(
    reservoir: Reservoir,
    bursts: Sequence[Burst],
    kept: Sequence[tuple[int, int]],
    store: StateStore,
    *,
    same_device: bool,
) -> tuple[int, tuple[int, int], list[DriveChunk], dict[str, Any] | None]:
    """Bring the device to where the store ends.

    Returns how many places count, the burst and chunk to go on with (chunk 0: after a reset), what must be driven again
    from rest before that chunk, and the seam.
    """
    done, spec = store.committed, reservoir.spec
    if done == 0:
        return 0, (0, 0), [], None
    b, i = kept[done - 1]
    at = {"dataset": bursts[b].chunks[i].dataset, "place": done}
    snapshot, seam = None, None
    frozen = spec.snapshot and same_device
    if frozen:
        try:
            snapshot = store.snapshot()
        except ConfigurationError as damage:
            if not is_damage(damage):
                raise
            log.warning("%s: going on without it; what came before is driven once more, and not kept", damage)
            seam = {"kind": "the snapshot was damaged", "steps": 0, **at}
    if snapshot is not None:
        reservoir.restore(snapshot)
    if done == len(kept):
        return done, (len(bursts), 0), [], seam
    if frozen and snapshot is None:
        # Damaged, now or when an earlier process came. The noise and the drift of a simulation, and which recording of
        # a repetition a replay takes, depend on all that came before.
        for burst in bursts[: kept[done][0]]:
            reservoir.reset(burst.batch)
            for chunk in burst.chunks:
                reservoir.run(chunk.inputs)
    if kept[done][0] != b:
        # The next one begins with a reset; the snapshot, if there is one, has told the noise where it is.
        return done, (kept[done][0], 0), [], seam
    if snapshot is not None:
        return done, (b, i + 1), [], None
    if spec.memory_steps and not frozen:
        past = np.concatenate([chunk.inputs for chunk in bursts[b].chunks[: i + 1]], axis=1)[:, -spec.memory_steps :]
        return done, (b, i + 1), [DriveChunk(past)], {"kind": "driven again", "steps": past.shape[1], **at}
    begin = _begin_of_sequence(kept, done)
    return begin, (b, 0), [], {"kind": "started again", "steps": 0, **at, "place": begin}


def erase_rest(bursts: Sequence[Burst], ahead: Sequence[tuple[int, int]], datasets: Mapping[str, Dataset]) -> None:
    """Remove what an earlier process wrote of the burst at hand and nobody counts.

    Whoever reads the store meanwhile would take the rest of another drive for this one's.
    """
    for chunk in [bursts[b].chunks[i] for b, i in ahead if b == ahead[0][0]]:
        if chunk.place is not None and datasets[chunk.dataset].is_written(chunk.place):
            datasets[chunk.dataset].erase(chunk.place)


def between_calibrations(before: dict[str, Any], now: Sequence[str]) -> dict[str, Any] | None:
    """The seam where another calibration follows that of a segment, or None."""
    ids = [", ".join(filter(None, names)) or "none" for names in (before.get("calibrations", ()), now)]
    return None if ids[0] == ids[1] else {"kind": "calibrated again", "before": ids[0], "now": ids[1]}


def closed_in_between(
    spec: ReservoirSpec, bursts: Sequence[Burst], kept: Sequence[tuple[int, int]], done: int, i: int
) -> dict[str, Any] | None:
    """The seam where a device was closed after `done` places and opened again, to go on with chunk `i` of a burst.

    None for a simulation: its snapshot, or its reset, brings it to where it was.
    """
    b, last = kept[done - 1]
    at = {"dataset": bursts[b].chunks[last].dataset, "place": done}
    if i and spec.continuity == "replayed":
        past = sum(chunk.inputs.shape[1] for chunk in bursts[b].chunks[:i])
        return {"kind": "driven again", "steps": min(past, spec.memory_steps), **at}
    return None if spec.identity.simulated else {"kind": "closed in between", "steps": 0, **at}


def _begin_of_sequence(kept: Sequence[tuple[int, int]], done: int) -> int:
    """How many chunks count if the sequence that was interrupted begins again."""
    if done in (0, len(kept)) or kept[done][0] != kept[done - 1][0]:
        return done
    return next(number for number, (burst, _) in enumerate(kept) if burst == kept[done][0])
