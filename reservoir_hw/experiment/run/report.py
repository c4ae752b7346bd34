"""Figures and a self-contained HTML page for a run folder."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from reservoir_hw.core.files import replace_file, replacing
from reservoir_hw.core.words import duration
from reservoir_hw.experiment.configuration.document import called
from reservoir_hw.experiment.run.result import InFolder, how_it_ended, to_yaml


def have_report_extra() -> bool:
    """Whether matplotlib and jinja2 are installed."""
    from importlib.util import find_spec

    return all(find_spec(name) for name in ("matplotlib", "jinja2"))


def write_report(result: InFolder) -> None:
    """Write figures (PNG and PDF) and report.html; where the `report` extra is not installed, a note that says so."""
    if not have_report_extra():
        result.notes.append("figures and the report need matplotlib and jinja2: pip install 'reservoir-hw[report]'")
        return
    from jinja2 import Environment

    pictures: list[dict[str, str]] = []
    for name, figure in result.figures().items():
        (result.folder / "figures").mkdir(exist_ok=True)
        for ending in ("png", "pdf"):
            with replacing(result.folder / "figures" / f"{name}.{ending}") as partial:
                figure.savefig(partial, format=ending, dpi=150, bbox_inches="tight")
            # Finding places for its parts takes as long as drawing, and they have theirs now.
            figure.set_layout_engine("none")
        picture = (result.folder / "figures" / f"{name}.png").read_bytes()
        pictures.append({"name": name.replace("_", " "), "data": base64.b64encode(picture).decode()})
    template = files("reservoir_hw.experiment.run").joinpath("report.html.j2").read_text(encoding="utf-8")
    rest = {key: value for key, value in result.provenance.items() if key not in ("configuration", "settings")}
    page = Environment(autoescape=True).from_string(template)
    replace_file(
        result.folder / "report.html",
        page.render(
            result=result,
            tables=result.tables(),
            pictures=pictures,
            devices=_devices(result.provenance),
            took=duration(result.seconds),
            durations=_durations(result.provenance["rows"]),
            settings=to_yaml(result.provenance["settings"]) if "settings" in result.provenance else "",
            configuration=json.dumps(result.provenance["configuration"], indent=2),
            provenance=json.dumps(rest, indent=2, default=str),
        ),
    )


def complete(result: InFolder) -> None:
    """Nothing is missing any more: the report is written, and the rest once more."""
    result.status = "complete"
    write_report(result)
    result.save()


@contextlib.contextmanager
def kept_to_the_end(result: InFolder, is_reported: Callable[[], bool]) -> Iterator[None]:
    """What ends this work, and what was found before, is in the folder; the report if there is something to show.

    The error goes on to the caller.
    """
    try:
        yield
    except BaseException as error:
        result.status, result.problem = how_it_ended(error)
        # A full disk must not hide it.
        with contextlib.suppress(Exception):
            result.save()
            if is_reported():
                write_report(result)
        raise


def _durations(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Of each row that says it: label, what varies, duration."""
    rows = [row for row in rows if "seconds" in row]
    return [
        [row["label"], ", ".join(f"{key} {text}" for key, text in said.items()), duration(row["seconds"])]
        for row, said in zip(rows, called([row["point"] for row in rows]), strict=True)
    ]


def _devices(provenance: dict[str, Any]) -> list[str]:
    """One line for each distinct device: whether it was hardware is said first."""
    lines = []
    for row in [*provenance["rows"], *([provenance["unfinished"]] if "unfinished" in provenance else [])]:
        for device in filter(None, (row.get("reservoir"), *row.get("further_reservoirs", ()))):
            identity = device["identity"]
            what = "simulation" if identity["simulated"] else "hardware"
            name = " ".join(filter(None, (identity["vendor"], identity["model"], identity["serial"])))
            lines.append(f"{what}: {name} (fingerprint {identity['fingerprint'][:12]})")
    return list(dict.fromkeys(lines))
