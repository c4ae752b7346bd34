"""The trained model of a run as a bundle for the edge, or as a C header."""

from __future__ import annotations

from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.experiment.deploy.export_models import export_model, export_readout
from reservoir_hw.experiment.deploy.job import REPLAYED, Export, Precision, Target
from reservoir_hw.experiment.deploy.trained import trained_row
from reservoir_hw.experiment.run.open_device import OpenDevice
from reservoir_hw.experiment.run.result import write_yaml
from reservoir_hw.experiment.states.progress import Progress

# By how an experiment trains a readout: what it was trained on is what it is compared on.
_EXPORTS = {"in one pass": export_readout, "by gradients": export_model}


def export_run(
    run: str | Path,
    path: str | Path | None = None,
    *,
    precision: Precision = "fp32",
    target: Target = "segments",
    row: int | None = None,
    reservoir: str | Path | None = None,
    offline: bool = False,
    force: bool = False,
    accept_loss: bool = False,
    progress: Progress | None = None,
    device: OpenDevice | None = None,
) -> Export:
    """Export a trained model of a run folder.

    The reservoir that it was trained on is opened and driven: with the beginning of the task's test, on which the
    graphs are compared with the model, and with the golden probe. With int8, also with the test, to say what it costs.

    Parameters
    ----------
    run
        The folder that `reservoir-hw run` wrote.
    path
        By default `model.rhw`, a bundle in one file; `model.h` for the target c. A name without `.rhw` is a folder.
    target
        "segments": the graphs between the crossings of the reservoir. "whole": one graph with the simulated network
        inside. "c": a C99 header of a linear readout.
    row
        Which model of a grid.
    reservoir
        A reservoir file that says where the device is now, in the place of the run's.
    offline
        Open no device: nothing is recorded, and there will be no probe response to compare devices with.
    force
        Replace what is at `path`.
    accept_loss
        Write int8 even where it costs more than is harmless.
    device
        Has the reservoir of a readout open, or opens it; whoever gives it closes it.

    Raises
    ------
    ConfigurationError
        The folder is no run, or damaged; the device is not the one of the training; the model cannot be exported.
    MissingExtra
        onnx or onnxruntime is not installed.
    """
    from reservoir_hw.readout.edge.sessions import import_onnxruntime

    place = _target_path(path, target, force=force)
    if offline and reservoir is not None:
        raise ConfigurationError("offline opens no device: leave out the reservoir, or offline")
    if offline and target == "whole":
        raise ConfigurationError(
            "target whole holds a simulated reservoir, which is compared with the simulation: leave out offline"
        )
    chosen = trained_row(run, row, reservoir=reservoir)
    readout = chosen.point.config.readout
    if readout.trained not in _EXPORTS:
        raise ConfigurationError(
            f"row {chosen.number} of {run}: readout {readout.kind} is exported from Python alone: "
            "export_model(load_model(RUN), PATH)"
        )
    if target != "c":
        # One sentence where the extra is missing, before anything is driven.
        with extra("export", "export needs onnx"):
            import onnx  # noqa: F401
        import_onnxruntime()
    exported = Export(chosen, place, precision, target, progress, device or OpenDevice(), accept_loss)
    _EXPORTS[readout.trained](exported, offline=offline)
    if offline:
        exported.notes.append(
            "No device was opened: the graphs were compared on random inputs alone, and the bundle has no response by "
            "which a device could be recognised (verify_probe)."
            if exported.manifest is not None
            else "No device was opened."
        )
    if exported.loss is not None:
        exported.notes.append(str(exported.loss))
    exported.command = _next_command(exported, reservoir)
    return exported


def _target_path(path: str | Path | None, target: Target, *, force: bool) -> Path:
    place = Path(path if path is not None else "model.h" if target == "c" else "model.rhw")
    if place.exists() and not force:
        raise ConfigurationError(f"{place} is there already: choose another name, or replace it (force, --force)")
    if target == "c" and place.suffix in (".rhw", ".zip"):
        raise ConfigurationError(f"{place}: target c writes a header, for instance {place.with_suffix('.h')}")
    if target != "c" and place.suffix == ".h":
        raise ConfigurationError(f"{place}: a bundle ends with .rhw, or is a folder; a header needs target c")
    return place


def _next_command(exported: Export, reservoir: str | Path | None) -> str:
    import shlex

    if exported.manifest is None:
        return f'#include "{exported.path.name}"'
    words = ["reservoir-hw", "infer", str(exported.path)]
    if exported.manifest.slots:
        words += ["--reservoir", str(reservoir or _reservoir_file(exported))]
    if exported.manifest.tokenizer is not None:
        words += ["--prompt", exported.prompt, "--tokens", "200"]
    else:
        exported.notes.append("infer reads a series from standard input, a step in a line, or from --input FILE.")
    return shlex.join(words)


def _reservoir_file(exported: Export) -> Path:
    """The file with the reservoir of the row, which is written where the file of the run has those of all rows."""
    row = exported.row
    if any(spec.identity.model.endswith(REPLAYED) for spec in row.reservoirs):
        exported.notes.append("FILE is to be the reservoir file of the device that was recorded.")
        return Path("FILE")
    if not any(key.partition(".")[0] == "reservoir" for key in row.point.values):
        return row.folder / "experiment.yaml"
    file = row.file().with_suffix(".reservoir.yaml")
    write_yaml(file, row.point.config.reservoir.model_dump(mode="json", serialize_as_any=True))
    return file
