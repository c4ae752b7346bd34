"""Calibrate the bench of a reservoir file: a calibration file, a figure beside it, and what to change in the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_hw.backends.visa.calibration import FILLED, Calibration, Estimate
from reservoir_hw.backends.visa.configuration import BenchConfig
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.experiment.devices.reservoir_file import reservoir_from_file
from reservoir_hw.experiment.states.progress import Progress


@dataclass(frozen=True)
class CalibrationResult:
    """A calibration, where it lies, and what to change in the reservoir file."""

    calibration: Calibration
    file: Path
    figure: Path | None
    remarks: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON. How the device answers to a marker is in the file alone."""
        found = self.calibration.model_dump(mode="json", exclude={"marker_answer_v", "marker_answer_rate_hz"})
        figure = None if self.figure is None else str(self.figure)
        return {"id": self.calibration.id, **found, "file": str(self.file), "figure": figure, "remarks": self.remarks}

    def facts(self) -> list[tuple[str, str]]:
        """For people: names and what there is to say about them. Intervals hold with 95 %."""
        found = self.calibration
        return [
            ("gain", _within(found.gain, "V/V", 1.0)),
            ("offset", _within(found.offset_v, "mV", 1e3)),
            ("delay", _within(found.delay_s, "µs", 1e6)),
            ("tau", _within(found.tau_s, "µs", 1e6)),
            ("noise", f"{_within(found.noise_v, 'mV', 1e3)}, rms"),
            ("linear range", f"{_range(found.linear_range_v)} V at the output"),
            ("answer", f"{_range(found.answer_range_v)} V"),
            ("vertical range", f"{_range(found.vertical_range_v)} V"),
            ("memory", f"{found.memory_steps} steps"),
        ]


def calibrate_file(
    file: str | Path,
    out: str | Path | None = None,
    *,
    set: Iterable[str] = (),
    inputs: int | None = None,
    progress: Progress | None = None,
) -> CalibrationResult:
    """Measure the bench of a reservoir or experiment file, and write what was found.

    By default it is written where `calibration:` of the reservoir says, or else to FILE.calibration.json. A figure with
    the same name ends in .png. Raises `ConfigurationError` for a reservoir that is no bench, `CalibrationError` for a
    device that cannot be calibrated.
    """
    config, _ = reservoir_from_file(file, set=set, inputs=inputs)
    if not isinstance(config, BenchConfig):
        raise ConfigurationError(f"{file}: kind {config.kind} has nothing to calibrate: a bench (kind: visa) has")
    try:
        from reservoir_hw.backends.visa.calibrate import calibrate
    except ImportError as error:
        raise MissingExtra(f"a calibration needs scipy: pip install 'reservoir-hw[visa]' ({error})") from error
    path = Path(out or config.calibration or Path(file).with_suffix(".calibration.json"))
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path} cannot be written: there is no folder {path.parent}")
    measured = calibrate(config, progress)
    measured.calibration.save(path)
    remarks, figure = _remarks(config, measured.calibration, path), path.with_suffix(".png")
    try:
        from reservoir_hw.experiment.devices.calibration_figure import calibration_figure

        calibration_figure(measured).savefig(figure, dpi=150)
    except ImportError:
        figure = None
        remarks.append("no figure: matplotlib is not installed (pip install 'reservoir-hw[report]')")
    return CalibrationResult(measured.calibration, path, figure, remarks)


def _remarks(config: BenchConfig, found: Calibration, path: Path) -> list[str]:
    remarks = []
    if config.calibration is None or Path(config.calibration) != path:
        remarks.append(f"to use it, write into the reservoir file: calibration: {path}")
    number = config.channels.answer
    (low, high), (lowest, highest) = config.digitizer.inputs[number].range_v, found.answer_range_v
    better = f"{number}: {{range_v: [{found.vertical_range_v[0]:.4g}, {found.vertical_range_v[1]:.4g}]}}"
    if lowest < low or highest > high:
        remarks.append(f"the answer leaves the range [{low:g}, {high:g}] of input {number}: digitizer.inputs: {better}")
    elif highest - lowest < FILLED * (high - low):
        part = (highest - lowest) / (high - low)
        remarks.append(f"the answer fills {part:.0%} of the range of input {number}: digitizer.inputs: {better}")
    if found.memory_steps > config.memory_steps:
        remarks.append(
            f"the device remembers {found.memory_steps} steps, and memory_steps is {config.memory_steps}: take more"
        )
    return remarks


def _within(found: Estimate, unit: str, scale: float) -> str:
    value, low, high = (scale * x for x in (found.value, found.low, found.high))
    return f"{value:.5g} {unit} ({low:.5g} to {high:.5g})"


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.4g} to {ends[1]:.4g}"
