"""What tasks refuse: settings that are declared and checked in one place, for files and for Python, and data."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from reservoir_hw import Experiment, tasks
from reservoir_hw.core import registry
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks import MemoryRecall, Narma, NarmaConfig, Task

NEEDED: dict[str, dict[str, Any]] = {"text": {"corpus": "nowhere.txt"}, "trace": {"trace": "t", "train_steps": 100}}


def class_of(kind: str) -> type[Task]:
    """The task as Python users know it: named as its kind."""
    return getattr(tasks, kind.title().replace("_", ""))


def beyond(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Values that the schema of a task forbids, one setting at a time."""
    fields = registry.find("tasks", kind).load().model_json_schema()["properties"]
    for key, field in fields.items():
        for one in field.get("anyOf", [field]):
            bad = [one[bound] + step for bound, step in BEYOND.items() if bound in one]
            if one.get("type") == "number":
                bad += [math.nan, math.inf]
            if one.get("type") == "integer" and "anyOf" not in field:
                bad += ["10", 1.5]
            if "enum" in one:
                bad += ["half"]
            yield from ((kind, {key: value}) for value in bad)


BEYOND = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0, "multipleOf": 9}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *(one for kind in registry.BUILT_IN["tasks"] if kind not in ("data", "validation") for one in beyond(kind)),
        ("memory_recall", {"delays": []}),
        ("memory_recall", {"delays": [1, 1]}),
        ("memory_recall", {"delays": [-1]}),
        ("santa_fe", {"first_step": 7000}),
        ("text", {"corpus": []}),
        ("text", {"validation": 0.5, "test": 0.5}),
        ("trace", {"delays": []}),
        ("trace", {"delays": [1, 1]}),
        ("trace", {"train_steps": 3}),
    ],
)
def test_settings_out_of_range(kind: str, settings: dict[str, Any]) -> None:
    settings = {**NEEDED.get(kind, {}), **settings}
    (*_, key) = settings
    with pytest.raises(ConfigurationError, match=key) as in_python:
        class_of(kind)(**settings)
    document = {"task": {"kind": kind, **settings}, "reservoir": {"kind": "esn"}, "readout": {"kind": "ridge"}}
    with pytest.raises(ConfigurationError, match=r"\btask\b") as in_a_file:
        Experiment(document)
    reason = str(in_python.value).rpartition(": ")[2]
    assert reason in str(in_a_file.value)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("lorenz", {"ahead_steps": 2, "closed_loop": {}}, "ahead_steps must be 1"),
        ("lorenz", {"closed_loop": {"starts": 0}}, r"closed_loop.starts"),
        ("lorenz", {"rho": 0.5}, r"rho 0.5 .* comes to rest"),
        ("henon", {"a": 2.0}, "diverges or comes to rest"),
        ("henon", {"a": 0.1}, "diverges or comes to rest"),
        ("mackey_glass", {"tau": 2.0}, r"tau 2, .* comes to rest"),
        ("mackey_glass", {"power": 1e6}, r"power 1e\+06 is too large"),
        ("kuramoto_sivashinsky", {"train_steps": 500, "length": 6.0}, "length 6 the field comes to rest"),
        ("kuramoto_sivashinsky", {"train_steps": 500, "length": 200.0, "points": 16}, "16 points are too few"),
        ("elman_grammar", {"corpus": "nowhere.txt"}, "cannot be read"),
        ("text", {"corpus": "nowhere.txt"}, r"there is no file nowhere\.txt here"),
        ("text", {"corpus": "a.txt", "unit": "sentence"}, "unit: sentence needs level: bpe"),
        ("text", {"corpus": "a.txt", "shortest": 4}, "shortest belongs to unit: sentence"),
        ("text", {"corpus": "a.txt", "level": "bpe", "unit": "sentence", "shortest": 5, "longest": 4},
         "longest 4 is less than shortest 5"),
        ("text", {"corpus": "a.txt", "vocabulary": 300}, "vocabulary belongs to level bpe, not to char"),
        ("trec", {"validation": 0, "judge": "validation"}, "judge: validation needs"),
        ("trec", {"vectors": "some.txt", "width": 4}, "width belongs to random vectors"),
        ("validation", {"task": {"kind": "narma", "train_steps": 0}}, "train_steps"),
    ],
)  # fmt: skip
def test_what_gives_no_data(kind: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        registry.find("tasks", kind).load().of(None, settings).build()  # pyright: ignore[reportAttributeAccessIssue]


def test_configurations_and_keywords_give_the_same_task() -> None:
    config = NarmaConfig(kind="narma", order=5, train_steps=50, test_steps=20)
    same = Narma(order=np.int64(5), train_steps=50, test_steps=20)
    for task in (config.build(), Narma(config), Narma(config, seed=0)):
        np.testing.assert_array_equal(task.train.inputs, same.train.inputs)
        np.testing.assert_array_equal(task.test.targets, same.test.targets)
    assert Narma(config, order=7).order == 7
    assert MemoryRecall(delays=(0, 3), train_steps=5, test_steps=5).outputs == 2


def test_every_kind_has_its_class_and_configuration() -> None:
    for kind in registry.BUILT_IN["tasks"]:
        config = registry.find("tasks", kind).load()
        assert config is getattr(tasks, f"{kind.title().replace('_', '')}Config")
        # It is the task of another kind.
        assert kind == "validation" or issubclass(class_of(kind), Task)
    assert set(tasks.__all__) == {name for name in tasks.__all__ if getattr(tasks, name)}


@pytest.mark.parametrize("package", ["tasks", "measures"])
def test_importing_the_package_imports_nothing_of_it(package: str) -> None:
    code = f"import sys, reservoir_hw.{package}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert f"reservoir_hw.{package}" in found
    assert not [module for module in found if module.startswith(f"reservoir_hw.{package}.")]
