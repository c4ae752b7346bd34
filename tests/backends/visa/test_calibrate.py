"""`device calibrate`: what is planted is found, and what it is good for."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import ikeda_reference
import numpy as np
import pytest
from emulated_lab import Lab, emulated_lab
from typer.testing import CliRunner

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.backends.visa.calibrate import calibrate
from reservoir_hw.backends.visa.calibration import Calibration
from reservoir_hw.backends.visa.reservoir import VisaConfig
from reservoir_hw.cli import app
from reservoir_hw.core.errors import CalibrationError, ConfigurationError
from reservoir_hw.emulators.bench import BenchConfig, Cable
from reservoir_hw.emulators.physics.devices import Ikeda, Linear, MackeyGlass, Model

EXPERIMENT = """
task: {kind: narma, train_steps: 300, test_steps: 100}
reservoir: {kind: esn}
readout: {kind: ridge, washout: 20}
"""


def without_monitor(lab: Lab, calibration: Path) -> dict[str, Any]:
    """Markers are seen through the device, which answers most to +1 V."""
    digitizer = {**lab.config["digitizer"], "inputs": {"1": {"range_v": [0.0, 0.36]}}}
    more = {"channels": {"output": 1, "answer": 1}, "calibration": str(calibration), "marker_v": 1.0}
    return {**lab.config, **more, "digitizer": digitizer}


def calibrated(config: dict[str, Any], path: Path, *options: str) -> Any:
    """By the command."""
    file = path.with_suffix(".yaml")
    file.write_text(json.dumps(config))
    return CliRunner().invoke(app, ["device", "calibrate", str(file), *options])


@pytest.mark.slow
def test_planted_values_lie_in_the_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    """In 19 of 20 benches, whose device, noise and trigger differ."""
    missed = {"gain": 0, "delay_s": 0, "noise_v": 0}
    for seed in range(20):
        random = np.random.default_rng(seed)
        gain, delay_s, noise_v = random.uniform((0.5, 1e-6, 1.5e-4), (1.0, 9e-6, 4e-4))
        device = Linear(delay_s=delay_s, gain_per_v=gain, noise_v=noise_v, offset_v=0.1)
        # The amplifier delays by its time constant.
        planted = {"gain": gain, "delay_s": delay_s + 1 / (2 * np.pi * device.bandwidth_hz), "noise_v": noise_v}
        with emulated_lab(BenchConfig(seed=seed).with_device(device), dialect="tektronix", memory_steps=4) as lab:
            lab.config["digitizer"]["inputs"]["1"]["range_v"] = [-2.0, 2.0]
            found = calibrate(VisaConfig.model_validate(lab.config)).calibration
            assert not lab.on()
        low, high = found.vertical_range_v
        assert low < found.answer_range_v[0] < found.answer_range_v[1] < high
        assert np.ptp(found.answer_range_v) >= 0.8 * (high - low)
        for name, value in planted.items():
            interval = getattr(found, name)
            missed[name] += not interval.low <= value <= interval.high
    with capsys.disabled():
        print(f"\nof 20 intervals do not hold what was planted: {missed}")  # noqa: T201
    assert max(missed.values()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("monitored", [True, False])
def test_states_of_a_calibrated_bench_are_those_of_the_equation(tmp_path: Path, monitored: bool) -> None:
    device, u = Ikeda(), np.random.default_rng(0).uniform(-1, 1, (1, 150, 1))
    path = tmp_path / "bench.json"
    with emulated_lab(dialect="tektronix", samples_per_node=20.0) as lab:
        config = {**lab.config, "calibration": str(path)} if monitored else without_monitor(lab, path)
        result = calibrated(config, path, "--json")
        assert result.exit_code == 0, result.output
        assert not lab.on()
        with open_reservoir(config) as reservoir:
            states = reservoir.run(u)[0]
            settings = reservoir.provenance()
            layout = reservoir._layout  # pyright: ignore[reportAttributeAccessIssue]
        made = Calibration.load(path)
        for hours, said in ((48, r"is 48\.0 h old"), (-48, r"made at .* UTC, and the clock of this host says .* UTC")):
            moment = datetime.now(UTC) - timedelta(hours=hours)
            made.model_copy(update={"made": moment}).save(path)
            with pytest.raises(CalibrationError, match=said):
                open_reservoir({**config, "max_calibration_age_h": 24})
            assert not lab.on()
    said = json.loads(result.stdout)
    assert said["id"] == settings["calibration_id"]
    assert said["tau_s"]["low"] < device.tau_s < said["tau_s"]["high"]
    assert said["file"] == str(path)
    assert Path(said["figure"]).read_bytes().startswith(b"\x89PNG")
    # The slope of the map at rest, sin 2 (x + phi), feeds back.
    slope = device.feedback_gain * np.sin(2 * (said["offset_v"]["value"] + device.phase_rad))
    assert said["gain"]["value"] == pytest.approx(device.gain_per_v * slope / (1 - slope), rel=5e-3)
    assert said["memory_steps"] < 12
    # What the amplifier delays is read later.
    position = 0.8 + 1 / (2 * np.pi * device.bandwidth_hz) / 1e-5
    truth = ikeda_reference.states(layout, u[0], device, position, 0.2, held=True)
    bound = np.hypot(device.noise_v, (0.36 / 4096) / np.sqrt(12)) / truth.std()
    assert np.sqrt(np.mean((states - truth) ** 2)) / truth.std() < bound


@pytest.mark.slow
def test_what_cannot_be_calibrated(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    (tmp_path / "esn.yaml").write_text("{kind: esn, nodes: 5, inputs: 1}")
    result = CliRunner().invoke(app, ["device", "calibrate", str(tmp_path / "esn.yaml")])
    assert result.exit_code == 2
    assert "kind esn has nothing to calibrate" in result.output
    loose = BenchConfig(inputs={1: Cable(output=2, device=Ikeda()), 2: Cable(output=1)})
    with emulated_lab(loose, dialect="tektronix") as lab:
        result = calibrated(lab.config, path)
        assert "is the device connected?" in result.output
        assert not lab.on()
    with emulated_lab(dialect="tektronix") as lab:
        # At -1 V this device answers as at 0 V.
        result = calibrated({**without_monitor(lab, path), "marker_v": -1.0}, path)
        assert "take a marker_v to which it answers more" in result.output
        assert not lab.on()
    assert not path.exists()


@pytest.mark.slow
def test_bundles_and_harvests_outlive_a_calibration(tmp_path: Path) -> None:
    path, bench, experiment = tmp_path / "bench.json", tmp_path / "bench.yaml", tmp_path / "narma.yaml"
    experiment.write_text(EXPERIMENT)
    np.save(tmp_path / "u.npy", np.random.default_rng(0).uniform(0, 0.5, (60, 1)))

    def command(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.output

    def stop(what: str, done: int, total: int) -> None:
        if done >= 150:
            raise KeyboardInterrupt

    with emulated_lab(dialect="tektronix", memory_steps=10) as lab:
        config = {**lab.config, "calibration": str(path)}
        bench.write_text(json.dumps(config))
        ids: list[str] = []
        sets = {"run.states": str(tmp_path / "states"), "run.chunk_steps": 50}
        harvest = Experiment.from_file(experiment, reservoir=bench, set=sets).harvest
        for turn in range(2):
            assert calibrated(config, path).exit_code == 0
            ids.append(Calibration.load(path).id)
            if turn == 0:
                command("run", experiment, "--reservoir", bench, "--set", f"run.folder={tmp_path / 'runs'}")
                run = next((tmp_path / "runs").iterdir())
                command("export", run, "-o", tmp_path / "bench.rhw")
                with pytest.raises(KeyboardInterrupt):
                    harvest(progress=stop)
        (store,) = harvest()
        driven = (
            "--reservoir",
            bench,
            "--warmup",
            "none",
            "--input",
            tmp_path / "u.npy",
            "--output",
            tmp_path / "y.npy",
        )
        command("infer", tmp_path / "bench.rhw", *driven, "--verify-probe")
    assert ids[0] != ids[1]
    assert store.complete
    assert [segment["seam"] for segment in store.segments] == [
        None,
        {"kind": "calibrated again", "before": ids[0], "now": ids[1]},
    ]
    assert np.isfinite(np.load(tmp_path / "y.npy")).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "steps"),
    [
        # What it feeds back goes on rising for longer than the first answer.
        (MackeyGlass(), 40),
        (Ikeda(noise_v=5e-3), 30),
        # Noise far below a step of the converter.
        (Linear(noise_v=1e-5, offset_v=0.15196827), 4),
    ],
)
def test_hard_devices(device: Model, steps: int) -> None:
    delay_s = device.delay_s if isinstance(device, Linear) else 0.0
    planted = {"tau_s": device.tau_s, "delay_s": delay_s + 1 / (2 * np.pi * device.bandwidth_hz)}
    planted |= {"noise_v": device.noise_v, "gain": 1.0, "offset_v": device.offset_v} if steps == 4 else {}
    with emulated_lab(BenchConfig().with_device(device), dialect="tektronix", memory_steps=steps) as lab:
        lab.config["digitizer"]["inputs"]["1"]["range_v"] = [-2.0, 2.0]
        found = calibrate(VisaConfig.model_validate(lab.config)).calibration
    for name, value in planted.items():
        interval = getattr(found, name)
        assert interval.low <= value <= interval.high, name


def test_what_is_no_calibration(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    for content, said in ((b"\x80\xff", "it is no text"), (b"{", "the file: Invalid JSON"), (b"{}", "made: Field req")):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=said):
            Calibration.load(path)
