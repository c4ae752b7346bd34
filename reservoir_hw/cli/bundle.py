"""`reservoir-hw bundle` and `reservoir-hw export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import own_stdout, print_facts, print_json, print_tables, progress_bar, say

if TYPE_CHECKING:
    from reservoir_hw.readout.edge.bundle import Difference
    from reservoir_hw.tasks.task import Table


app = typer.Typer(
    help="Exported models: what is in a bundle, whether it computes what it should, comparison.", no_args_is_help=True
)

BundlePath: TypeAlias = Annotated[str, typer.Argument(metavar="BUNDLE", help="An exported model: .rhw or a folder.")]

_WEIGHTS_SHOWN = 20
_RANGES_SHOWN = 4


@app.command("info")
def info(bundle: BundlePath, json: JsonOption = False) -> None:
    """Check a bundle's files and say what is in it: segments, reservoirs, certificate, size."""
    from reservoir_hw.readout.edge.bundle import Bundle, describe, segments_of

    with Bundle.open(bundle) as opened:
        about = describe(opened)
    if json:
        print_json(about)
        return
    print_facts(_facts(about))
    print_tables([segments_of(about, "Segments"), *([_reservoirs(about)] if about["slots"] else [])])


@app.command("verify")
def verify(bundle: BundlePath, json: JsonOption = False) -> None:
    """Check a bundle's files, run its golden inputs here and compare the outputs; exit with 1 if they differ."""
    from reservoir_hw.readout.edge import verification
    from reservoir_hw.tasks.task import Table

    found = verification.verify(bundle)
    if json:
        print_json(found.as_dict())
    else:
        rows = [
            [
                str(segment.segment),
                _printable(segment.graph),
                f"{segment.worst.value} {segment.worst.channel}",
                f"{segment.worst.error:.2g}",
                f"{segment.worst.limit:.2g}",
                f"{segment.worst.spread:.3g}",
                "yes" if segment.passed else "NO",
            ]
            for segment in found.segments
        ]
        note = (
            f"{found.runtime}. Error and limit are in spreads, the standard deviation of that output. All files have "
            "the size and the hash that the manifest names."
        )
        header = ["segment", "graph", "output", "error", "limit", "spread", "within"]
        print_tables([Table(f"Golden outputs of {found.bundle}", header, rows, note)])
        for remark in found.remarks:
            typer.echo(remark)
    if not found.passed:
        wrong = [str(segment.segment) for segment in found.segments if not segment.passed]
        say(f"{bundle}: outputs differ from the golden ones in segment {', '.join(wrong)}")
        raise typer.Exit(1)


@app.command("diff")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The reference.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The bundle that is compared with it.")],
    json: JsonOption = False,
) -> None:
    """Compare two bundles: settings, reservoirs, files and every weight; exit with 1 if they differ."""
    from reservoir_hw.readout.edge import bundle as differences

    found = differences.diff(a, b)
    if json:
        print_json(found.as_dict())
    else:
        print_facts([("A", found.a), ("B", found.b), ("differ in", _summary(found))])
        print_tables(_differences(found))
    if not found.identical:
        raise typer.Exit(1)


def _facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    from reservoir_hw.readout.edge.bundle import size_text, value_text
    from reservoir_hw.readout.edge.manifest import Loss

    certificate = about["certificate"]
    return [
        ("bundle", about["path"]),
        ("model", f"{_printable(about['model'])}, {about['precision']}, {about['target']}"),
        ("input", value_text(about["input"])),
        ("output", f"{value_text(about['output'])}, {about['output_meaning']}"),
        *([("columns", _columns(about["series"]))] if about["series"] else []),
        ("steps", _steps(about)),
        *(
            [("washout", f"the first {about['washout']:,} answers from rest are not to be used")]
            if about["washout"]
            else []
        ),
        *([("ranges", _ranges(about["ranges"]))] if about["input"]["dtype"] != "int64" else []),
        *([("int8", str(Loss.model_validate(about["loss"])))] if about["loss"] else []),
        ("parameters", f"{about['parameters']:,}, {size_text(about['weights_bytes'])}"),
        ("size", f"{size_text(about['bytes'])}, {len(about['files'])} files"),
        ("tokenizer", _printable(about["tokenizer"] or "none")),
        ("certificate", _printable(f"{certificate['reference']}, {certificate['runtime']}")),
        *((f"  {_printable(name)}", _metric(pair)) for name, pair in certificate["metrics"].items()),
        ("sha256", about["sha256"]),
    ]


def _ranges(ranges: Mapping[str, Any] | None) -> str:
    """What training has seen, of the first few channels."""
    if ranges is None:
        return "unknown: infer cannot tell what lies outside of the training"
    texts = []
    for name in ("inputs", "targets"):
        ends = [f"{low:.4g} to {high:.4g}" for low, high in zip(ranges[name]["low"], ranges[name]["high"], strict=True)]
        texts.append(f"{name} {', '.join(ends[:_RANGES_SHOWN])}{' ...' if len(ends) > _RANGES_SHOWN else ''}")
    return "; ".join(texts)


def _reservoirs(about: Mapping[str, Any]) -> Table:
    from reservoir_hw.tasks.task import Table

    rows = []
    for index, slot in enumerate(about["slots"]):
        identity = slot["identity"]
        names = " ".join(_printable(str(identity[key])) for key in ("vendor", "model", "serial") if identity.get(key))
        rows.append(
            [
                str(index),
                names,
                {True: "simulation", False: "hardware"}.get(identity.get("simulated"), "unknown"),
                f"{slot['inputs']:,}",
                f"{slot['nodes']:,}",
                str(slot["repetitions"]),
                "yes" if slot["probe"] else "no",
                slot["fingerprint"][:12],
            ]
        )
    header = ["slot", "device", "is", "inputs", "nodes", "repetitions", "probe", "fingerprint"]
    return Table("Reservoirs", header, rows, "probe: whether a golden response to compare the device with is there.")


def _summary(found: Difference) -> str:
    parts = {"settings": found.fields, "reservoirs": found.fingerprints, "files": found.files, "weights": found.weights}
    return ", ".join(f"{len(part)} {name}" for name, part in parts.items() if part) or "nothing: they are identical"


def _differences(found: Difference) -> list[Table]:
    from reservoir_hw.tasks.task import Table

    tables = []
    for title, fields in (("Settings", found.fields), ("Fingerprints", found.fingerprints), ("SHA-256", found.files)):
        rows = [[_printable(field.name), _short(field.a), _short(field.b)] for field in fields]
        if rows:
            tables.append(Table(title, ["", "A", "B"], rows))
    worst = sorted(found.weights, key=lambda one: float("inf") if one.largest is None else one.largest, reverse=True)
    rows = [
        [
            _printable(one.name),
            one.a or "–",
            one.b or "–",
            "" if one.largest is None else f"{one.largest:.3g}",
            "" if one.relative is None else f"{one.relative:.3g}",
        ]
        for one in worst[:_WEIGHTS_SHOWN]
    ]
    if rows:
        more = f", {len(worst) - len(rows)} more differ less" if len(worst) > len(rows) else ""
        note = f"relative: to max|A|. {found.same_weights} weights are the same{more}."
        tables.append(Table("Weights", ["", "A", "B", "max|Δ|", "relative"], rows, note))
    return tables


def _columns(series: Mapping[str, Any]) -> str:
    inputs, outputs = (", ".join(one["name"] for one in series[side]) for side in ("inputs", "outputs"))
    return f"{inputs} → {outputs or 'one of ' + ', '.join(series['classes'])}"


def _steps(about: Mapping[str, Any]) -> str:
    if about["whole_sequences"]:
        return "whole sequences only: an answer depends on later steps, too"
    return "one after the other" if about["stepwise"] else "any number at once"


def _metric(pair: Mapping[str, float]) -> str:
    return ", ".join(f"{_printable(name)} {number:.6g}" for name, number in pair.items())


def _short(value: Any) -> str:
    text = "–" if value is None else _printable(str(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _printable(text: str) -> str:
    """Text of a foreign file, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


# ---- `reservoir-hw export`.


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, as `reservoir-hw run` wrote it.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="PATH", help="The bundle, or header. (default: model.rhw, or model.h)"),
    ] = None,
    precision: Annotated[
        Literal["fp32", "int8"],
        typer.Option(help="int8: rounded weights; refused where the test suffers."),
    ] = "fp32",
    target: Annotated[
        Literal["segments", "whole", "c"],
        typer.Option(
            help="segments: graphs between the crossings of the reservoir; whole: one graph, the simulated reservoir "
            "inside; c: a C99 header of a linear readout."
        ),
    ] = "segments",
    row: Annotated[int | None, typer.Option(metavar="N", help="Which model of a grid. (default: the only one)")] = None,
    reservoir: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the device is now, in the place of the run's.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Open no device: no comparison on recorded states, no probe response.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Write int8 even where it costs more than is harmless.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json: JsonOption = False,
) -> None:
    """Export a trained model for the edge: ONNX graphs in a bundle, or a C header.

    The graphs are compared with the model, on what its device answers to the beginning of the test as well; nothing
    is written if they differ. `reservoir-hw infer` runs a bundle, where there is no torch.
    """
    from reservoir_hw.experiment.deploy.export import export_run

    with own_stdout(json), progress_bar() as progress:
        exported = export_run(
            run, out, precision=precision, target=target, row=row, reservoir=reservoir, offline=offline, force=force,
            accept_loss=accept_loss, progress=progress,
        )  # fmt: skip
    if json:
        print_json(exported.as_dict())
        return
    print_tables(exported.tables())
    typer.echo(f"{exported.label} is in {exported.path} ({exported.bytes:,} bytes)")
    for note in exported.notes:
        say(note)
    typer.echo(f"Now: {exported.command}")
