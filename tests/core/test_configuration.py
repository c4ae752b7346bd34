"""Documents: order of precedence, origins of every value, and errors that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw import open_reservoir
from reservoir_hw.core.configuration import Config, Document, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import parse_experiment

EXPERIMENT = """\
title: test
task:
  kind: elman_grammar
  sentences: 100
reservoir:
  kind: esn
  nodes: 50
  seed: 3
readout:
  kind: ridge
  alpha: 1e-4
training:
  priming_passes: 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT)
    return path


def parse(path: Path, **over: Any) -> Any:
    return parse_experiment(load_document(path, **{"environment": {}, **over}))


def test_the_order_is_file_reservoir_environment_set(file: Path, tmp_path: Path) -> None:
    lab = tmp_path / "lab.yaml"
    lab.write_text("kind: esn\nnodes: 60\nleak_rate: 0.5\n")
    environment = {"RESERVOIR_HW__RESERVOIR__NODES": "70", "RESERVOIR_HW__READOUT__ALPHA": "1e-2", "OTHER": "x"}
    assert parse(file, reservoir=lab).reservoir.nodes == 60
    assert parse(file, reservoir=lab).reservoir.seed == 0, "--reservoir replaces the whole section"
    config = parse(file, reservoir=lab, environment=environment)
    assert (config.reservoir.nodes, config.reservoir.leak_rate, config.readout.alpha) == (70, 0.5, 1e-2)
    config = parse(file, reservoir=lab, environment=environment, set=["reservoir.nodes=80"])
    assert config.reservoir.nodes == 80
    assert parse(file, set={"reservoir.nodes": np.int64(90)}).reservoir.nodes == 90


def test_extends_merges_and_a_new_kind_replaces(tmp_path: Path, file: Path) -> None:
    child = tmp_path / "child.yaml"
    child.write_text("extends: experiment.yaml\nreservoir:\n  nodes: 51\nreadout:\n  bias: false\n")
    config = parse(child)
    assert (config.reservoir.nodes, config.reservoir.seed, config.readout.bias) == (51, 3, False)
    document = Document.from_file(child)
    assert document.origin(("reservoir", "nodes")) == f"{child}:3"
    assert document.origin(("reservoir", "seed")) == f"{file}:8"
    other = tmp_path / "other.yaml"
    other.write_text("extends: child.yaml\nreservoir:\n  kind: python\n  nodes: 2\n")
    assert Document.from_file(other).data["reservoir"] == {"kind": "python", "nodes": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: nowhere.yaml\n", r"c\.yaml:1: extends: there is no file .*nowhere\.yaml"),
        ("extends: c.yaml\n", "extends itself"),
        ("extends: [a, b]\n", "must be the path of one file"),
        ("", r"c\.yaml:1: is empty"),
        ("- 1\n", "holds list"),
        ("a: 1\nb: [1, 2\nc: 3\n", r"c\.yaml:\d+:\d+: not valid YAML"),
        ("a: 1\na: 2\n", r"c\.yaml:2:1: not valid YAML: found duplicate key"),
        ("a: \tb: c\n", "not valid YAML"),
        ("a: 1\nb: !!python/tuple [0.1]\n", r"c\.yaml:2:4: .* the tag !!python/tuple: write a plain list without it"),
        ("a: !mine {b: 1}\n", r"c\.yaml:1:4: .* the tag !mine: write a plain mapping without it"),
        ("a: [!!binary aGk=]\n", r"c\.yaml:1:5: .* the tag !!binary: write a plain value without it"),
        ("a: 1\nb: {alpha: 1,5e-3}\n", r"c\.yaml: line 2: a comma ends the value before 0\.005: write 1\.5e-3"),
        ("b: {alpha: 1,5, c: 2}\n", r"c\.yaml: line 1: a comma ends the value before 5"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        Document.from_file(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nodes: 50", "nodez: 50", r"experiment\.yaml:7: unknown key 'reservoir\.nodez'; did you mean 'nodes'\?"),
        ("nodes: 50", "nodes: -3", r"experiment\.yaml:7: reservoir\.nodes = -3: .*greater than 0"),
        ("nodes: 50", 'nodes: "50"', r"experiment\.yaml:7: reservoir\.nodes = '50': .*valid integer"),
        ("nodes: 50", "nodes: true", r"experiment\.yaml:7: reservoir\.nodes = True: .*valid integer"),
        ("nodes: 50", "nodes: 5.5", r"reservoir\.nodes = 5\.5"),
        ("nodes: 50", "nodes: 50\n  leak_rate: .nan", r"experiment\.yaml:8: reservoir\.leak_rate"),
        ("nodes: 50", "nodes: 50\n  leak_rate: [0.1, 1.5]", r"experiment\.yaml:8: reservoir\.leak_rate\.1 = 1\.5"),
        ("kind: ridge", "kind: rigde", r"experiment\.yaml:10: readout: unknown kind 'rigde'; did you mean 'ridge'"),
        ("  kind: ridge\n", "", r"experiment\.yaml:9: readout needs `kind:`, one of: .*ridge"),
        ("priming_passes: 1", "priming_passes: -1", r"experiment\.yaml:13: training\.priming_passes = -1"),
        ("title: test", "titel: test", r"experiment\.yaml:1: unknown key 'titel'; did you mean 'title'"),
        ("task:\n  kind: elman_grammar\n  sentences: 100\n", "", "task is missing"),
        ("nodes: 50", "vary: {nodes: []}", r"experiment\.yaml:7: reservoir\.vary\.nodes"),
        ("title: test", "vary: {readout.alpha: []}", r"experiment\.yaml:1: vary\.readout\.alpha"),
        ("title: test", "baselines: [bigrma]", r"experiment\.yaml:1: baselines\.0: unknown kind"),
        ("title: test", "kind: esn", "this is a reservoir file"),
    ],
)
def test_every_message_names_its_line(file: Path, old: str, new: str, message: str) -> None:
    file.write_text(EXPERIMENT.replace(old, new))
    with pytest.raises(ConfigurationError, match=message):
        parse(file)


def test_messages_name_options_and_variables(file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^--set reservoir\.nodes: reservoir\.nodes = -3"):
        parse(file, set=["reservoir.nodes=-3"])
    with pytest.raises(ConfigurationError, match=r"^environment variable RESERVOIR_HW__RESERVOIR__NODEZ: unknown key"):
        parse(file, environment={"RESERVOIR_HW__RESERVOIR__NODEZ": "3"})
    with pytest.raises(ConfigurationError, match="write it as key=value"):
        parse(file, set=["reservoir.nodes"])
    with pytest.raises(ConfigurationError, match=r"reservoir\.nodes is 50, it has no key 'x'"):
        parse(file, set=["reservoir.nodes.x=1"])
    with pytest.raises(ConfigurationError, match="cannot be read as a YAML value"):
        parse(file, set=["reservoir.nodes=[1"])
    for empty in ("", "  "):
        with pytest.raises(ConfigurationError, match=r"^--set reservoir\.nodes: there is no value; .* write null"):
            parse(file, set=[f"reservoir.nodes={empty}"])
        with pytest.raises(ConfigurationError, match=r"^environment variable RESERVOIR_HW__TITLE: there is no value"):
            parse(file, environment={"RESERVOIR_HW__TITLE": empty})
    assert parse(file, set=["reservoir.spectral_radius=null"]).reservoir.spectral_radius is None
    with pytest.raises(ConfigurationError, match=r"^--set readout: line 1: a comma ends the value before 5"):
        parse(file, set=["readout={kind: ridge, alpha: 1,5}"])
    with pytest.raises(ConfigurationError, match=r"^--set reservoir\.leak_rate: .* the tag !!python/tuple"):
        parse(file, set=["reservoir.leak_rate=!!python/tuple [0.1, 0.9]"])
    with pytest.raises(ConfigurationError, match="is not a dotted path"):
        parse(file, set=["reservoir..nodes=1"])


def test_several_problems_come_in_one_message(file: Path) -> None:
    file.write_text(EXPERIMENT.replace("nodes: 50", "nodes: 0").replace("alpha: 1e-4", "alpah: 1"))
    with pytest.raises(ConfigurationError) as caught:
        parse(file)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("2 problems")
    assert {line.split(": ")[0].strip() for line in lines[1:]} == {f"{file}:7", f"{file}:11"}


def test_set_reaches_into_lists(file: Path) -> None:
    file.write_text(EXPERIMENT + "baselines:\n  - kind: bigram\n")
    config = parse(file, set=["baselines.0.smoothing=0.5"])
    assert config.baselines[0].smoothing == 0.5
    with pytest.raises(ConfigurationError, match="'1' is not one of the 1 items"):
        parse(file, set=["baselines.1.smoothing=0.5"])


def test_reservoir_files_and_experiment_files_both_open(file: Path, tmp_path: Path) -> None:
    lab = tmp_path / "lab.yaml"
    lab.write_text("kind: esn\nnodes: 7\n")
    with open_reservoir(lab, inputs=2) as reservoir:
        assert reservoir.spec.nodes == 7
    with open_reservoir(file, inputs=2) as reservoir:
        assert reservoir.spec.nodes == 50
    with pytest.raises(ConfigurationError, match="needs `inputs` when no task gives it"):
        open_reservoir(lab)
    two: dict[str, Any] = {"kind": "esn", "nodes": 7, "inputs": 2}
    with open_reservoir(two, inputs=3) as reservoir:
        assert reservoir.mask_config is not None
        assert (reservoir.mask_config.kind, reservoir.mask_config.scaling, reservoir.spec.inputs) == ("uniform", 1.0, 3)
    with pytest.raises(ConfigurationError, match=r"3 channels for 2 inputs of .*input_mask: none"):
        open_reservoir({**two, "input_mask": "none"}, inputs=3)
    with pytest.raises(ConfigurationError, match="unknown kind 'esm'; did you mean 'esn'"):
        open_reservoir({"kind": "esm"})


def test_origins_survive_a_union() -> None:
    class Inner(Config):
        x: int

    class Outer(Config):
        inner: Inner | list[Inner]

    document = Document.from_mapping({"inner": [{"x": 1}, {"x": "a"}]}, "here")
    with pytest.raises(ConfigurationError, match=r"here: inner\.1\.x = 'a'"):
        validate(Outer, document)
