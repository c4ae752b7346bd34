"""`reservoir-hw measure --qualify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from cli.test_measure import trace
from toys import Toy
from typer.testing import CliRunner

from reservoir_hw.cli.errors import CommandGroup
from reservoir_hw.cli.measure import measure as command
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.devices.measure import measure
from reservoir_hw.measures import Climate, Coverage, LyapunovSpectrum, OperatingMap

app = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False)
app.callback()(lambda: None)
app.command("measure")(command)

NOISY = """\
kind: esn
nodes: 12
dtype: float64
nonidealities: {readout: {noise: 0.01}}
"""
LORENZ = """\
task: {kind: lorenz, train_steps: 2000, closed_loop: {starts: 8, warmup_steps: 100, forecast_steps: 400}}
reservoir: {kind: esn, nodes: 200, spectral_radius: 0.6, input_scaling: 0.3, bias_scaling: 0.5}
readout: {kind: ridge, alpha: 1.0e-6, washout: 100}
vary: {reservoir.leak_rate: [0.5, 1.0], reservoir.seed: [0, 1]}
"""
FEW = ["--qualify", "--steps", "1000", "--washout", "50", "--repeats", "4"]


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["measure", *map(str, arguments)])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    path = tmp_path / "lab.yaml"
    path.write_text(NOISY)
    return path


class _Said:
    """The last that was said of the progress."""

    now = total = 0

    def __call__(self, what: str, now: int, total: int) -> None:
        self.now, self.total = now, total


def nothing_driven() -> bool:
    return not Path("runs").exists()


def test_a_reservoir_file(file: Path) -> None:
    done = call(file, *FEW, "--unchecked")
    assert done.exit_code == 0, done.output
    for text in ("capacity lost to noise", "Rank 12 = linear", "Noise budget", "Operating map: the best points"):
        assert text in done.stdout
    assert "a Lyapunov spectrum needs a device whose state can be set" in done.stdout
    assert "give an experiment file" in done.stdout
    folder = next(Path("runs").iterdir())
    assert {path.stem for path in (folder / "figures").glob("*.png")} == {"noise_budget", "operating_map", "coverage"}
    found = json.loads((folder / "metrics.json").read_text())
    budget = found["measures"]["noise_budget"]
    assert budget["interval"]["low"] < budget["value"] < budget["interval"]["high"]
    assert set(found["not_measured"]) == {"lyapunov_spectrum", "climate"}


def test_only_what_conforms_is_qualified(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [file, *FEW, "--only", "noise_budget"]
    done = call(*few)
    assert done.exit_code == 0, done.output
    assert "conform: " in done.stderr
    # A device that answers before it was asked: conform sees that it is not causal.
    Path("lab_drift.py").write_text(
        "import numpy as np\n\ndef run(u):\n    return np.tanh(u + np.roll(u, -1, axis=0)) @ np.ones((1, 3))\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    file.write_text(
        "kind: python\ncall: lab_drift:run\ninputs: 1\nnodes: 3\nsimulated: true\ncontinuity: held\n"
        "reset: {kind: none, reason: no memory}\n"
    )
    done = call(*few)
    assert done.exit_code == 2, done.output
    assert "the device does not conform, so it is not qualified" in done.output
    assert len(list(Path("runs").iterdir())) == 1


def test_a_closed_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lorenz.yaml").write_text(LORENZ)
    found = measure("lorenz.yaml", qualify=True, only=["lyapunov_spectrum", "climate"], steps=6000).measured
    spectrum, climate = found["lyapunov_spectrum"], found["climate"]
    assert isinstance(spectrum, LyapunovSpectrum)
    assert isinstance(climate, Climate)
    # Lyapunov exponents of the Lorenz system, times the time step of 0.02.
    assert spectrum.value == pytest.approx(0.9056 * 0.02, rel=0.25)
    assert spectrum.dimension == pytest.approx(2.06215, rel=0.01)
    assert list(spectrum.known) == pytest.approx([0.018112, 0.0, -0.291446])
    assert climate.value < 2 * climate.floor
    assert climate.ended == 0


def test_an_operating_map_over_a_key_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.yaml").write_text(NOISY)
    axes = {"amplitude": [0.1, 1.0], "reservoir.leak_rate": [0.05, 1.0], "hold": [1, 3]}
    result = measure("lab.yaml", qualify=True, only=["operating_map"], axes=axes, steps=1000, washout=100, repeats=3)
    found = result.measured["operating_map"]
    assert isinstance(found, OperatingMap)
    assert found.axes == ("amplitude", "reservoir.leak_rate", "hold")
    assert len(found.points) == 8
    at = {tuple(point): capacity for point, capacity in zip(found.points, found.capacity, strict=True)}
    # Large signals stand out of the noise; an input that is held gives fewer functions of its past.
    assert at[1.0, 1.0, 1] > at[0.1, 1.0, 1] + 1
    assert at[1.0, 1.0, 1] > at[1.0, 1.0, 3]
    assert at[1.0, 1.0, 1] != at[1.0, 0.05, 1]
    assert tuple(found.points[found.best]) == max(at, key=lambda point: at[point])
    assert found.interval.low <= found.value <= found.interval.high
    assert len(found.reference) == 3


@pytest.mark.slow
def test_steps_are_driven_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lorenz.yaml").write_text(LORENZ.replace("nodes: 200", "nodes: 8").replace("2000", "300"))
    for only in (["noise_budget"], ["operating_map"], ["coverage"], ["lyapunov_spectrum"], ["climate"]):
        said = _Said()
        measure(
            "lorenz.yaml",
            set={"reservoir.leak_rate": 0.5},
            qualify=True,
            only=only,
            steps=600,
            washout=20,
            repeats=2,
            progress=said,
        )
        # The best point of a map is not known before.
        least = 0.8 if only == ["operating_map"] else 1.0
        assert 0 < least * said.total <= said.now <= said.total, only


def test_a_budget_takes_fewer_steps(file: Path) -> None:
    done = call(file, "--qualify", "--unchecked", "--only", "operating_map", "--washout", "50", "--budget", "150000")
    assert done.exit_code == 0, done.output
    assert "with 2 repeats" in done.stderr or "steps at most" in done.stderr
    done = call(file, "--qualify", "--unchecked", "--only", "operating_map", "--budget", "1000")
    assert done.exit_code == 2
    assert "the budget 1000 is too small" in done.output


@pytest.mark.slow
def test_a_device_whose_settings_do_nothing_reaches_one_behaviour(tmp_path: Path) -> None:
    with Toy(deterministic=True) as device:
        found = measure(device, qualify=True, only=["coverage"], steps=1000, washout=50, folder=tmp_path)
    covered = found.measured["coverage"]
    assert isinstance(covered, Coverage)
    assert len(covered.behaviours) == len(covered.beside)
    assert covered.value < covered.cells_beside


def test_a_trace_says_what_it_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    rng = np.random.default_rng(0)
    u = np.tile(rng.uniform(-1, 1, (1, 2000, 1)), (3, 1, 1))
    x = np.concatenate([u, np.roll(u, 1, axis=1)], axis=2)
    states = x + 0.5 * rng.standard_normal(x.shape)
    path = trace(Path("repeated"), u, states)
    done = call(path, "--qualify")
    assert done.exit_code == 0, done.output
    assert "capacity lost to noise" in done.stdout
    assert done.stdout.count("not measurable from this recording: ") == 4
    # Signal 1/3, noise 1/4, in two directions.
    found = json.loads(next(Path("runs").glob("*/metrics.json")).read_text())
    assert found["measures"]["noise_budget"]["value"] == pytest.approx(2 * 0.25 / (0.25 + 1 / 3), abs=0.05)
    once = trace(Path("once"), u[:1], states[:1])
    done = call(once, "--qualify", "--only", "noise_budget")
    assert done.exit_code == 0
    assert "without repeated drives these cannot be told apart" in done.output
    done = call(once, "--qualify", "--only", "climate")
    assert done.exit_code == 2
    assert "not measurable from this recording" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--map", "amplitude=0.5,2"], "inputs from -2 to 2 lie beyond the range of the device, -1 to 1"),
        (
            ["--map", "bias=0.5", "--map", "amplitude=0.6"],
            "with bias 0.5, amplitude 0.6: inputs from -0.1 to 1.1",
        ),
        (["--map", "hold=1.5"], "whole device steps"),
        (["--map", "colour=1"], "no axis 'colour'; there are amplitude, bias, hold"),
        (["--map", "amplitude=loud"], "write AXIS=V1,V2,... with numbers"),
        (["--map", "amplitude=0,1"], "it must be more than 0"),
        (["--map", "reservoir.colour=1"], "colour"),
        (["--only", "lyapunov_spectrum"], "a Lyapunov spectrum needs a device whose state can be set"),
        (["--only", "climate"], "give an experiment file whose task forecasts in a closed loop"),
        (["--only", "consistency"], "there is no measure 'consistency' (without qualify)"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_driven(file: Path, arguments: list[str], said: str) -> None:
    Path("qualified_lab.py").write_text("def run(u):\n    raise AssertionError('driven')\n")
    file.write_text(
        "kind: python\ncall: qualified_lab:run\ninputs: 1\nnodes: 3\nsimulated: true\ncontinuity: held\n"
        "input_range: [-1, 1]\nreset: {kind: none, reason: no memory}\n"
    )
    done = call(file, "--qualify", *arguments)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "conform" not in done.output
    assert nothing_driven()


def test_options_that_belong_to_qualify(file: Path) -> None:
    for option in (["--map", "hold=1"], ["--unchecked"]):
        done = call(file, *option)
        assert done.exit_code == 2
        assert "belong to --qualify" in done.output
    assert nothing_driven()


def test_a_key_of_an_open_reservoir() -> None:
    with Toy() as device, pytest.raises(ConfigurationError, match="this reservoir is open already"):
        measure(device, qualify=True, axes={"reservoir.leak_rate": [0.1]})
