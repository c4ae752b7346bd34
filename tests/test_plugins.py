"""Third-party packages: the example of docs/extending.md, installed and used through its entry point."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from edge_runs import write_text

from reservoir_hw.core import registry
from reservoir_hw.core.errors import ConfigurationError

ROOT = Path(__file__).parents[1]

USE = """
import numpy as np, torch
from reservoir_hw import open_reservoir
u = np.random.default_rng(0).uniform(-1, 1, (3, 12, 1)).astype(np.float32)
with open_reservoir("lab.yaml") as diodes:
    diodes.reset(3)
    whole = diodes.run(u)
    assert whole.shape == (3, 12, 3) and whole.dtype == np.float32 and whole.any()
    diodes.reset(3)
    assert np.array_equal(np.stack([diodes.step(u[:, t]) for t in range(12)], axis=1), whole)
    diodes.reset(3)
    assert np.array_equal(np.concatenate(list(diodes.stream([u[:, :5], u[:, 5:]])), axis=1), whole)
    diodes.reset(3)
    tensor = diodes.run(torch.from_numpy(u))
    assert isinstance(tensor, torch.Tensor) and np.array_equal(tensor.numpy(), whole)
    assert not diodes.spec.identity.simulated
print("all of it for free")
"""


COMPARE = """
import sys
from pathlib import Path
import numpy as np, torch
from edge_runs import model_of
from reservoir_hw.readout.edge import EdgeRunner
tokens = np.random.default_rng(0).integers(0, 5, (2, 40))
with model_of(Path(sys.argv[1])) as (model, devices):
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)).numpy()
    with EdgeRunner("model.rhw", devices) as runner:
        assert np.abs(runner.run(tokens) - logits).max() <= 1e-5 * max(1, np.abs(logits).max())
        prompt = runner.tokenizer.encode("abcd")
        print(runner.tokenizer.decode(list(model.generate(prompt, 20, temperature=0))))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny package was installed by pip."""
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(ROOT / "tests/plugin_package", source)
    page = (ROOT / "docs/extending.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    parts = ("class DiodesConfig", "class QuadraticReadout(", "import ReservoirModelConfig")
    example, module, readout = (next(block for block in blocks if part in block) for part in parts)
    backend = example.split("class DiodesConfig")[0].strip().splitlines()
    assert len([line for line in backend if line.strip()]) <= 15
    (source / "lab_diodes.py").write_text(example)
    (source / "lab_quadratic_module.py").write_text(module)
    (source / "lab_quadratic.py").write_text(readout)
    (instrument,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/instruments.md").read_text(), flags=re.DOTALL)
    driver = instrument.split("class LabGeneratorConfig")[0].partition("class ")[2].strip().splitlines()
    assert len([line for line in driver if line.strip()]) <= 20
    (source / "lab_generator.py").write_text(instrument)
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, capture_output=True)
    (target / "lab.yaml").write_text("kind: diodes\n")
    (experiment,) = (part for part in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL) if "corpus" in part)
    (target / "experiment.yaml").write_text(experiment)
    write_text(target)
    return target


def run_in(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT), str(ROOT / "tests")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=site,
        env={**os.environ, "PYTHONPATH": path, "RESERVOIR_HW_LOCKS": str(site / "locks")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_documented_example_gets_everything_for_free(site: Path) -> None:
    done = run_in(site, "-c", USE)
    assert done.stdout.strip() == "all of it for free", done.stderr


@pytest.mark.slow
def test_the_command_line_lists_and_checks_it(site: Path) -> None:
    listed = run_in(site, "-m", "reservoir_hw.cli", "list", "backends").stdout
    assert re.search(r"diodes\s*│\s*lab-diodes\s*│\s*Three leaky capacitors", listed), listed
    checked = run_in(site, "-m", "reservoir_hw.cli", "check", "lab.yaml")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.slow
def test_the_documented_readout_from_training_to_the_edge(site: Path) -> None:
    def command(*arguments: str) -> dict[str, Any]:
        done = run_in(site, "-m", "reservoir_hw.cli", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    folder = command("run", "experiment.yaml")["folder"]
    command("export", folder, "-o", "model.rhw")
    text = ["--prompt", "abcd", "--tokens", "20", "--temperature", "0"]
    written = command("infer", "model.rhw", "--reservoir", "experiment.yaml", *text)
    assert written["model"] == "ReservoirLM(QuadraticReadout)"
    done = run_in(site, "-c", COMPARE, folder)
    assert done.stdout.strip() == written["text"].strip(), done.stderr


DRIVE = """
import numpy as np
from emulated_lab import emulated_lab
from reservoir_hw import open_reservoir
u = np.random.default_rng(0).uniform(-1, 1, (1, 10, 1))
with emulated_lab() as lab:
    states = []
    for kind in (lab.config["generator"]["kind"], "lab_generator"):
        lab.config["generator"]["kind"] = kind
        with open_reservoir(lab.config) as reservoir:
            states.append(reservoir.run(u))
    assert not lab.on()
assert np.abs(states[1] - states[0]).max() < 0.1 * states[0].std()
"""


@pytest.mark.slow
def test_the_documented_instrument_plays(site: Path) -> None:
    done = run_in(site, "-c", DRIVE)
    assert done.returncode == 0, done.stderr


def write_dist(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_a_clash_and_a_broken_plugin_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write_dist(tmp_path, "other", "[reservoir_hw.backends]\nesn = nowhere:EsnConfig\n")
    with pytest.raises(ConfigurationError, match=r"two packages offer the backends kind 'esn': reservoir_hw .* other"):
        registry.find("backends", "esn")
    write_dist(tmp_path, "broken", "[reservoir_hw.tasks]\nnothing = nowhere:Nothing\nwrong = json:dumps\n")
    with pytest.raises(ConfigurationError, match=r"'nothing' .* from broken.* cannot be loaded"):
        registry.find("tasks", "nothing").load()
    with pytest.raises(ConfigurationError, match="must be a class derived from Config"):
        registry.find("tasks", "wrong").load()


def test_every_built_in_kind_loads() -> None:
    for group in registry.BUILT_IN:
        for plugin in registry.available(group).values():
            assert plugin.load().model_fields["kind"]
