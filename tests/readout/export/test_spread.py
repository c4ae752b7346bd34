"""Errors are measured by how much an output moves: whatever its unit, its offset, and the outputs beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here
from edge_bundles import sealed

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.readout import RidgeReadout
from reservoir_hw.readout.edge.manifest import WEIGHTS, Certified, Loss
from reservoir_hw.readout.edge.runner import EdgeRunner
from reservoir_hw.readout.edge.verification import spread_of, verify
from reservoir_hw.readout.export.exporter import built, certify, export_model
from reservoir_hw.readout.export.graph import Plan
from reservoir_hw.readout.export.recording import record_series
from reservoir_hw.readout.export.segments import plan_of_states

UNITS = (1.0, 2.0**-10, 2.0**-20, 2.0**-30)
"""Powers of two: a change of unit rounds nothing by itself."""
WIDE, NARROW = 0.5, 0.02
"""Inputs from 0 to this: the weights that read narrow ones are large and cancel, so they are summed in float64."""


@pytest.fixture(scope="module")
def device() -> Iterator[Reservoir]:
    with open_reservoir({"kind": "esn", "nodes": 120, "inputs": 1, "spectral_radius": 0.9}) as device:
        yield device


@pytest.fixture(scope="module")
def series(device: Reservoir) -> dict[float, dict[str, np.ndarray]]:
    """What the device answers to wide and to narrow inputs."""
    u = np.random.default_rng(0).uniform(0, 1, (1, 1500, 1))
    return {width: record_series(device, (width * u).astype(np.float32)) for width in (WIDE, NARROW)}


def targets(recorded: dict[str, np.ndarray]) -> np.ndarray:
    """Two outputs (1, time, 2) that move by about 1."""
    u = recorded["inputs"].astype(np.float64)
    y = np.concatenate([np.roll(u, 12, 1), np.roll(u, 3, 1)], -1)
    return (y - y.mean((0, 1))) / y.std((0, 1))


def trained(recorded: dict[str, np.ndarray], y: np.ndarray, alpha: float = 1e-9) -> RidgeReadout:
    return RidgeReadout(alpha, washout=100).fit(recorded["states_0"], y)


def planned(device: Reservoir, recorded: dict[str, np.ndarray], readout: RidgeReadout) -> tuple[Plan, list[Any]]:
    plan = plan_of_states(readout, device.spec, recorded=recorded)
    return plan, built(plan, {})[1]


def certified(device: Reservoir, recorded: dict[str, np.ndarray], y: np.ndarray) -> tuple[Certified, str]:
    plan, sessions = planned(device, recorded, trained(recorded, y))
    certificate, _ = certify(plan, sessions, recorded=recorded, washout=100)
    return certificate.segments[0], plan.output.dtype


@pytest.mark.parametrize(("width", "dtype"), [(WIDE, "float32"), (NARROW, "float64")])
def test_the_unit_changes_nothing(device: Reservoir, series: Any, width: float, dtype: str) -> None:
    recorded = series[width]
    y = targets(recorded)
    found = [certified(device, recorded, unit * y) for unit in UNITS]
    assert {precision for _, precision in found} == {dtype}
    errors = [one.error for one, _ in found]
    assert 0 < max(errors) <= 2 * min(errors)
    for (one, _), unit in zip(found, UNITS, strict=True):
        assert one.spread == pytest.approx(unit * found[0][0].spread, rel=0.01)
        assert one.limit == pytest.approx(found[0][0].limit, rel=0.01)


def test_an_offset_costs_its_own_rounding(device: Reservoir, series: Any) -> None:
    for width, precision in ((WIDE, np.float32), (NARROW, np.float64)):
        recorded, eps = series[width], np.finfo(precision).eps
        y = targets(recorded)
        here, _ = certified(device, recorded, y)
        assert here.limit is not None
        for offset in (1e2, 1e4, 1e6):
            there, dtype = certified(device, recorded, y + offset)
            assert dtype == precision.__name__
            assert there.limit is not None
            assert there.error <= here.error + eps * offset * 1.01 / here.spread
            assert there.limit <= here.limit + eps * offset * 1.01 / here.spread


def test_a_large_output_excuses_nothing_in_a_small_one(device: Reservoir, series: Any) -> None:
    recorded = series[WIDE]
    plan, sessions = planned(device, recorded, trained(recorded, targets(recorded) * [1, 1e-6]))
    certificate, spreads = certify(plan, sessions, recorded=recorded, washout=100)
    assert certificate.segments[0].error < 5e-5
    small = spreads["spread/outputs"][1]
    assert small == pytest.approx(1e-6, rel=0.5)
    exact = plan.references[0]
    plan.references = [lambda values: {"outputs": exact(values)["outputs"] + np.array([0, 5e-4 * small], np.float32)}]
    with pytest.raises(ConfigurationError, match=r"differs from the model by 0\.0005\d* of what outputs 1 moves by"):
        certify(plan, sessions, recorded=recorded, washout=100)


def forge(bundle: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the weights with this in their name and make all hashes again, as a forger would."""
    data = bytearray((bundle / WEIGHTS).read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    (one,) = [one for key, one in json.loads(data[8:start]).items() if name in key]
    begin, end = one["data_offsets"]
    dtype = {"F32": np.float32, "F64": np.float64, "I8": np.int8}[one["dtype"]]
    weights = np.frombuffer(data, dtype, offset=start + begin, count=(end - begin) // np.dtype(dtype).itemsize)
    weights[:] = change(weights.reshape(one["shape"])).reshape(-1)
    (bundle / WEIGHTS).write_bytes(data)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][WEIGHTS]["sha256"] = hashlib.sha256(data).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps(sealed(manifest)))


@pytest.mark.parametrize(
    ("precision", "width", "alpha", "loss"),
    [
        ("fp32", WIDE, 1e-9, None),
        ("fp32", NARROW, 1e-9, None),
        ("int8", WIDE, 10.0, None),
        ("int8", NARROW, 1e-9, Loss(judged_on="test", error=1000.0, accepted=True)),
    ],
)
def test_zeroed_weights_of_one_output_are_found(
    device: Reservoir, series: Any, tmp_path: Path, precision: Any, width: float, alpha: float, loss: Loss | None
) -> None:
    """Of outputs of unlike units, each alone; also where int8 costs one of them much and that was accepted."""
    random, recorded = np.random.default_rng(1), series[width]
    # The third is hard to read, the fourth easy: int8 loses them unlike.
    y = np.concatenate([targets(recorded), random.normal(size=(1, 1500, 1)), recorded["states_0"][..., :1]], -1)
    y = y * [1, 1e-3, 1e-6, 1e3] + [0, 30, 0, 0]
    readout = trained(recorded, y, alpha)
    spread = spread_of(readout.predict(recorded["states_0"].astype(np.float64))[:, 100:])
    place = tmp_path
    for output in range(4):
        plan = plan_of_states(readout, device.spec, precision, recorded=recorded)
        place = tmp_path / str(output)
        export_model(
            plan, place, reservoirs=device, precision=precision, recorded=recorded, spread=spread, washout=100,
            loss=loss, probe=False,
        )  # fmt: skip
        assert verify(place).passed
        forge(place, "weight", lambda weights, output=output: weights * (np.arange(4) != output))
        found = verify(place)
        assert not found.passed
        assert (found.segments[0].worst.value, found.segments[0].worst.channel) == ("outputs", output)
    moved = tmp_path / "moved"
    export_model(
        plan_of_states(readout, device.spec, precision, recorded=recorded), moved, reservoirs=device,
        precision=precision, recorded=recorded, spread=spread, washout=100, loss=loss, probe=False,
    )  # fmt: skip
    forge(moved, "bias", lambda bias: bias + 10 * spread)
    assert not verify(moved).passed
    said = call_here("bundle", "verify", place)
    assert said.returncode == 1
    assert "outputs differ from the golden ones in segment 0" in said.stderr


def test_outputs_of_a_graph_in_double_keep_their_digits(device: Reservoir, series: Any, tmp_path: Path) -> None:
    """A pressure that moves by less than a step of float32."""
    recorded = series[NARROW]
    readout = trained(recorded, 101325 + 1e-3 * targets(recorded))
    export_model(readout, tmp_path / "m", reservoirs=device, recorded=recorded, probe=False)
    exact = readout.predict(recorded["states_0"].astype(np.float64))
    with EdgeRunner(tmp_path / "m", device) as runner:
        found = runner.run(recorded["inputs"])
    assert found.dtype == np.float64
    assert np.abs(found - exact)[:, 100:].max() < 1e-7
