"""Another reservoir in an experiment: what of the experiment belonged to the one that is replaced.

Left out by name are keys of the replaced reservoir in rows of `vary`, axes of whole reservoirs, a sweep of which
nothing is left, and `of:` of a baseline encoder_only. All else that does not fit is refused, by whoever knows the
physical reason.
"""

from __future__ import annotations

from typing import Any

from reservoir_hw.core.configuration import Document, Location
from reservoir_hw.core.errors import ConfigurationError

REFUSED = {
    "no gradient passes": "a gradient through what is no differentiable simulation",
    "one step from given states": "a step from given states, which only a simulation can take",
    "a recording has no other inputs": "inputs that were not recorded",
    "does not hold the inputs": "inputs that were not recorded",
    "nothing says in which range": "values without a range, for a device that refuses what lies outside its own",
    "declares no input_range": "hardware that says not how strong its inputs may be",
    "input_mask: none": "a file that refuses to spread channels",
    "closed loop waits for each answer": "a closed loop on a device that does not wait",
    "has no reservoir of its own to replace": "a model that drives no reservoir",
}
"""A part of the message -> the physical reason, for tables."""


def replace_reservoir(document: Document, file: Document, *, strict: bool = False) -> None:
    """Put a reservoir file in the place of the section `reservoir`, and take out what belonged to the old one.

    Each thing that is taken out gets a sentence in `document.left_out`; with `strict` it is a `ConfigurationError`.
    """
    document.replace("reservoir", file)
    for at in (("vary",), ("sweep", "search")):
        _without_axis(document, at)
    if isinstance(document.data.get("vary"), list):
        _without_keys(document)
    sweep = document.data.get("sweep")
    if isinstance(sweep, dict) and not sweep.get("search") and not file.data.get("search"):
        _say(document, ("sweep",), "all that it searched belonged to the replaced reservoir")
        document.remove(("sweep",))
    baselines = document.data.get("baselines")
    for number, baseline in enumerate(baselines if isinstance(baselines, list) else []):
        if isinstance(baseline, dict) and baseline.get("kind") == "encoder_only" and "of" in baseline:
            _say(document, ("baselines", number, "of"), "encoder_only takes the encoder of the reservoir that is there")
            document.remove(("baselines", number, "of"))
    if strict and document.left_out:
        raise ConfigurationError("--strict: " + "; ".join(document.left_out))


def _say(document: Document, place: Location, what: str) -> None:
    document.left_out.append(f"{document.origin(place)}: {'.'.join(map(str, place))}: {what}")


def _without_axis(document: Document, at: Location) -> None:
    axes: Any = document.data
    for key in at:
        axes = axes.get(key) if isinstance(axes, dict) else None
    if isinstance(axes, dict) and "reservoir" in axes:
        _say(document, (*at, "reservoir"), "whole reservoirs in the place of the one that is there now")
        document.remove((*at, "reservoir"))


def _without_keys(document: Document) -> None:
    rows: list[Any] = document.data["vary"]
    kept: list[Any] = []
    gone: set[str] = set()
    for row in rows:
        here = {key: value for key, value in row.items() if key.partition(".")[0] != "reservoir"}
        gone |= row.keys() - here.keys()
        if here not in kept:
            kept.append(here)
    if not gone:
        return
    became = "" if len(kept) == len(rows) else f"; {len(rows)} rows become {len(kept)}"
    _say(document, ("vary",), f"{', '.join(sorted(gone))} belonged to the replaced reservoir{became}")
    document.set("vary", kept if any(kept) else {}, document.origin(("vary",)))
