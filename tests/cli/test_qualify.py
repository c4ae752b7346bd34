"""`reservoir-hw measure --qualify`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.test_measure import trace
from command_line import alone
from toys import Toy

from reservoir_hw.cli.measure import measure as command
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.devices.measure import measure
from reservoir_hw.measures import Climate, Coverage, LyapunovSpectrum, NoiseBudget, OperatingMap
from reservoir_hw.testing import conform

call = alone("measure", command)

NOISY = """\
kind: esn
nodes: 12
dtype: float64
nonidealities: {readout: {noise: 0.01}}
"""
LORENZ = """\
task: {kind: lorenz, train_steps: 2000, closed_loop: {starts: 8, warmup_steps: 100, forecast_steps: 400}}
reservoir:
  {kind: esn, nodes: 200, spectral_radius: 0.6, input_scaling: 0.3, bias_scaling: 0.5,
   vary: {leak_rate: [0.5, 1.0], seed: [0, 1]}}
readout: {kind: ridge, alpha: 1.0e-6, washout: 100}
"""
COUNTED = """\
from pathlib import Path

import numpy as np

W = 0.5 * np.eye(12, k=-1) + 0.1 * np.eye(12)
NOISE = np.random.default_rng()


def run(u):
    with Path("steps.log").open("a") as log:
        log.write(f"{len(u)}\\n")
    x, states = np.zeros(12), np.empty((len(u), 12))
    for t in range(len(u)):
        x = states[t] = np.tanh(W @ x + np.linspace(-1, 1, 12) * u[t, 0] + 0.1)
    return states + 0.001 * NOISE.standard_normal(states.shape)
"""
COUNTED_FILE = """\
kind: python
call: counted_lab:run
inputs: 1
nodes: 12
simulated: true
continuity: free_running
input_range: [-1, 1]
memory_steps: 40
"""
FEW = ["--qualify", "--steps", "1000", "--washout", "50", "--repeats", "4"]


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


@pytest.fixture
def counted(file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A noisy device that writes down with how many steps it was driven."""
    Path("counted_lab.py").write_text(COUNTED)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    file.write_text(COUNTED_FILE + "reset: {kind: none, reason: each call begins at rest}\n")
    return file


def counted_steps() -> int:
    log = Path("steps.log")
    return sum(map(int, log.read_text().split())) if log.exists() else 0


@pytest.mark.slow
def test_a_reservoir_file(pictures: None, file: Path) -> None:
    done = call(file, *FEW, "--unchecked")
    assert "unchecked" in done.stdout
    assert "Nobody has looked whether the device does what it declares" in done.stdout
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
    assert found["conformance"]["outcome"] == "unchecked"
    best = json.loads((folder / "metrics.json").read_text())["measures"]["operating_map"]["note"]
    row = done.stdout.split("Operating map: the best points")[1].splitlines()[4]
    amplitude, bias, hold = (cell.strip() for cell in row.split("│")[1:4])
    assert f"Best at amplitude {amplitude}, bias {bias}, hold {hold}:" in best


@pytest.mark.slow
def test_only_what_conforms_is_qualified(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [file, *FEW, "--only", "noise_budget"]
    done = call(*few)
    (summary,) = (line for line in done.stderr.splitlines() if line.startswith("conform: "))
    assert f"{summary.removeprefix('conform: ')}. The folder conformance has the report." in done.stdout
    folder = next(Path("runs").iterdir())
    assert json.loads((folder / "conformance" / "report.json").read_text())["passed"]
    assert json.loads((folder / "metrics.json").read_text())["conformance"]["outcome"] == "passed"
    # A device that answers before it was asked: conform sees that it is not causal.
    Path("lab_drift.py").write_text(
        "import numpy as np\n\ndef run(u):\n    return np.tanh(u + np.roll(u, -1, axis=0)) @ np.ones((1, 3))\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    file.write_text(
        "kind: python\ncall: lab_drift:run\ninputs: 1\nnodes: 3\nsimulated: true\ncontinuity: held\n"
        "reset: {kind: none, reason: no memory}\n"
    )
    assert "the device does not conform, so it is not qualified" in call(*few, code=2).output
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
def test_a_setting_that_cannot_be_measured_leaves_the_device_to_the_others(tmp_path: Path) -> None:
    """Without inputs nothing moves: there is no map, but a coverage."""
    (tmp_path / "esn.yaml").write_text("{kind: esn, nodes: 12, dtype: float64}")
    asked = {"steps": 600, "repeats": 2, "qualify": True, "folder": tmp_path, "only": ["operating_map", "coverage"]}
    axes = {"amplitude": [0.5], "reservoir.input_scaling": [0.0, 1.0]}
    found = measure(tmp_path / "esn.yaml", axes=axes, **asked)
    assert found.status == "complete"
    assert set(found.measured) == {"coverage"}
    assert "operating_map" in found.reasons


def test_what_was_clipped_is_said(tmp_path: Path) -> None:
    device = {"kind": "python", "call": "numpy:tanh", "reset_call": "gc:isenabled", "nodes": 1, "inputs": 1}
    device |= {"simulated": True, "continuity": "held", "input_range": [-0.5, 0.5], "out_of_range": "clip"}
    (tmp_path / "lab.yaml").write_text(json.dumps(device))
    found = measure(tmp_path / "lab.yaml", only=["memory_capacity"], input_range=(-1, 1), steps=1000, folder=tmp_path)
    assert len(found.warnings) == 1
    assert "input values were clipped to the range -0.5 to 0.5" in found.warnings[0]


@pytest.mark.slow
def test_steps_are_driven_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lorenz.yaml").write_text(LORENZ.replace("nodes: 200", "nodes: 8, leak_rate: 0.5").replace("2000", "300"))
    for only in (["noise_budget"], ["operating_map"], ["coverage"], ["lyapunov_spectrum"], ["climate"]):
        said = _Said()
        measure(
            "lorenz.yaml",
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


NO_RESET, WASHOUT = "{kind: none, reason: each call begins at rest}", "{kind: washout, steps: 25, probe_steps: 5}"


@pytest.mark.slow
def test_resets_before_replays_are_in_the_plan_of_the_suite(counted: Path) -> None:
    replayed = COUNTED_FILE.replace("free_running", "replayed").replace("memory_steps: 40", "memory_steps: 16")
    counted.write_text(f"{replayed}reset: {{kind: washout, steps: 25, seed: 0}}\n")
    call(counted, "--qualify", "--only", "noise_budget", "--budget", "45000", "--washout", "50")
    assert 35_000 < counted_steps() <= 45_000


@pytest.mark.slow
@pytest.mark.parametrize("reset", [NO_RESET, WASHOUT])
def test_a_budget_bounds_all_that_drives_the_device(counted: Path, reset: str) -> None:
    counted.write_text(f"{COUNTED_FILE}reset: {reset}\n")
    few = [counted, "--qualify", "--only", "noise_budget", "--steps", "2000", "--repeats", "4", "--washout", "50"]
    done = call(*few, "--budget", "25000")
    planned = re.search(
        r"([\d,]+) device steps \(at most ([\d,]+) of the conformance suite, then ([\d,]+)", done.stderr
    )
    found = re.search(r"conform: .* \(([\d,]+) device steps\)", done.stderr)
    assert planned is not None
    assert found is not None
    total, suite, own, looked_at = (int(text.replace(",", "")) for text in (*planned.groups(), found[1]))
    assert total == suite + own <= 25_000
    assert looked_at <= suite
    assert 0.95 * (looked_at + own) < counted_steps() <= total
    Path("steps.log").unlink()
    done = call(*few, "--budget", "100", code=2)
    least = re.search(r"at least ([\d,]+) device steps \([\d,]+ of them for the conformance suite\)", done.output)
    assert least is not None
    # Opening a device plays its reset: once to learn what the measures need, and once for the suite.
    assert counted_steps() == (0 if "none" in reset else 2 * (5 * 25 + 3 * 5))
    enough = int(least[1].replace(",", ""))
    call(*few, "--budget", enough - 1, code=2)
    if "none" in reset:
        assert counted_steps() == 0
        call(*few, "--budget", enough)
        assert 0 < counted_steps() <= enough


@pytest.mark.slow
def test_python_takes_the_suite_along(counted: Path) -> None:
    driving: Any = {"qualify": True, "only": ["noise_budget"], "steps": 400, "repeats": 2, "washout": 50}
    assert measure(counted, **driving, conform=conform).metrics["conformance"]["outcome"] == "passed"
    assert measure(counted, **driving).metrics["conformance"]["outcome"] == "unchecked"
    with Toy() as device, pytest.raises(ConfigurationError, match="opens the device by itself: give a file"):
        measure(device, **driving, conform=conform)


def test_a_budget_in_time_needs_a_pace(counted: Path) -> None:
    for more in ([], ["--qualify"]):
        done = call(counted, *more, "--budget", "1h", code=2)
        assert "declares no step_period_s: give it in device steps" in done.output
    assert counted_steps() == 0
    assert nothing_driven()


@pytest.mark.slow
def test_a_budget_takes_fewer_steps(file: Path) -> None:
    done = call(file, "--qualify", "--unchecked", "--only", "operating_map", "--washout", "50", "--budget", "150000")
    assert "with 2 repeats" in done.stderr or "steps at most" in done.stderr
    done = call(file, "--qualify", "--unchecked", "--only", "operating_map", "--budget", "1000", code=2)
    assert "the budget 1000 is too small" in done.output


def test_too_few_forecasts_for_a_climate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lorenz.yaml").write_text(LORENZ.replace("starts: 8", "starts: 2"))
    done = call("lorenz.yaml", "--qualify", "--only", "climate", code=2)
    assert "a climate needs at least 4 forecasts, and task.closed_loop.starts is 2" in done.output
    assert nothing_driven()


@pytest.mark.slow
def test_the_figures_of_the_page(tmp_path: Path) -> None:
    """What docs/qualify.md says of the example. A chaotic loop depends on how many threads have summed."""
    root = Path(__file__).parents[2]
    page = " ".join((root / "docs" / "qualify.md").read_text().replace("\u2212", "-").split())
    only = ["noise_budget", "lyapunov_spectrum", "climate"]
    found = measure(root / "examples/forecasting/lorenz.yaml", qualify=True, only=only, folder=tmp_path).measured
    budget, spectrum, climate = (found[name] for name in only)
    assert isinstance(budget, NoiseBudget)
    assert isinstance(spectrum, LyapunovSpectrum)
    assert isinstance(climate, Climate)
    second, third = spectrum.exponents[1:3]
    said = [float(number) for number in re.findall(r"-?\d+\.\d+", page.split("finds the exponents ")[1])]
    exponent, _, _, zero, shrinking = said[:5]
    of_first, _, of_third = spectrum.exponent_intervals[:3]
    assert of_first.low <= exponent <= of_first.high
    assert abs(second - zero) < 0.001
    assert abs(third - shrinking) < 0.005
    assert of_third.low < third < of_third.high
    assert abs(spectrum.dimension - float(page.split("The dimension is ")[1][:4])) < 0.02
    low, high = re.findall(r"differ by [\d.]+ dB \[([\d.]+), ([\d.]+)\]", page)[0]
    assert float(low) <= climate.value <= float(high)
    assert f"two halves of the true series by {climate.floor:.2f} dB" in page
    rest = budget.rest_intervals[0]
    assert (
        f"{budget.rank[0]:.0f} = {budget.linear[0]:.1f} linear + {budget.nonlinear[0]:.1f} nonlinear + a rest of "
        f"{budget.rest[0]:.1f} [{rest.low:.1f}, {rest.high:.1f}]"
    ) in page


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
    assert "capacity lost to noise" in done.stdout
    assert done.stdout.count("not measurable from this recording: ") == 4
    # Signal 1/3, noise 1/4, in two directions.
    found = json.loads(next(Path("runs").glob("*/metrics.json")).read_text())
    assert found["measures"]["noise_budget"]["value"] == pytest.approx(2 * 0.25 / (0.25 + 1 / 3), abs=0.05)
    once = trace(Path("once"), u[:1], states[:1])
    done = call(once, "--qualify", "--only", "noise_budget")
    assert "without repeated drives these cannot be told apart" in done.output
    done = call(once, "--qualify", "--only", "climate", code=2)
    assert "not measurable from this recording" in done.output
    for more in (["--map", "hold=1"], ["--budget", "1000"]):
        done = call(path, "--qualify", *more, code=2)
        assert "is not driven: a budget and the axes of a map belong to a device" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--map", "amplitude=0.5,2"], "inputs from -2 to 2 lie beyond the range of the device, -1 to 1"),
        (
            ["--map", "bias=0.5", "--map", "amplitude=0.6"],
            "with bias 0.5, amplitude 0.6: inputs from -0.1 to 1.1",
        ),
        (["--map", "hold=1.5"], "whole device steps"),
        (["--map", "hold=nan"], "hold of the operating map is [nan]: give finite numbers"),
        (["--map", "hold=inf"], "hold of the operating map is [inf]: give finite numbers"),
        (["--map", "amplitude=0.1,inf"], "amplitude of the operating map is [0.1, inf]: give finite numbers"),
        (["--map", "bias=-inf"], "bias of the operating map is [-inf]: give finite numbers"),
        (["--map", "reservoir.nodes=3,4"], "the device has 4 nodes and not 3"),
        (["--map", "hold=1", "--map", "hold=2"], "--map hold is given twice"),
        (["--map", "hold=1", "--only", "noise_budget"], "belong to the operating map, which is not among"),
        (["--input-range", "-5", "5"], "inputs from -5 to 5 lie beyond the range of the device, -1 to 1"),
        (["--input-range", "-inf", "inf"], "(lowest, highest), both finite"),
        (["--steps", "20"], "steps is 20; a qualification needs at least 100"),
        (["--steps", "100", "--max-delay", "270"], "nodes with these delays need at least 110"),
        (["--budget", "loud"], "'loud' is no budget"),
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
    done = call(file, "--qualify", *arguments, code=2)
    assert said in done.output
    assert "conform" not in done.output
    assert nothing_driven()


def test_options_that_belong_to_qualify(file: Path) -> None:
    for option in (["--map", "hold=1"], ["--unchecked"]):
        assert "belong to --qualify" in call(file, *option, code=2).output
    assert nothing_driven()


def test_a_key_of_an_open_reservoir() -> None:
    with Toy() as device, pytest.raises(ConfigurationError, match="this reservoir is open already"):
        measure(device, qualify=True, axes={"reservoir.leak_rate": [0.1]})
