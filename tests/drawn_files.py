"""Experiment files that are valid by their JSON schema, drawn at random, with sizes that take a fraction of a second.

Who draws is a `random.Random`, or that of hypothesis, which shrinks.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from reservoir_hw.core.registry import available
from reservoir_hw.experiment import Experiment
from reservoir_hw.experiment.configuration.experiment import schema

NEEDS_DATA = ("japanese_vowels", "santa_fe", "trec")
"""Tasks of a data set that nobody draws."""

SIZES = {
    "nodes": (1, 12),
    "train_steps": (30, 200),
    "test_steps": (10, 60),
    "washout_steps": (0, 20),
    "washout": (0, 20),
    "sentences": (20, 60),
    "train_periods": (3, 10),
    "test_periods": (8, 10),
    "period_steps": (4, 12),
    "points": (8, 12),
    "starts": (1, 3),
    "warmup_steps": (1, 20),
    "forecast_steps": (2, 20),
    "test_warmup_steps": (0, 30),
    "guard_steps": (0, 10),
    "priming_passes": (0, 2),
    "repetitions": (1, 3),
    "draws": (1, 2),
    "chunk_steps": (1, 100),
    "context": (1, 12),
    "steps": (1, 4),
    "epochs": (1, 2),
    "batch": (1, 8),
    "vocabulary": (257, 270),
    "layers": (1, 2),
    "orders": (1, 3),
    "order": (1, 3),
    "delays": (-1, 4),
    "inputs": (1, 3),
    "tokens": (1, 20),
    "point": (0, 1),
    "dataset": (0, 5),
    "taps": (1, 5),
    "lags": (1, 3),
    "skip_lines": (0, 2),
    "shards": (1, 2),
    "block_steps": (1, 50),
}
"""Bounds of integers by their key. Others lie at most six above their least."""

NUMBERS = (0.0, 1e-9, 1e-3, 0.1, 0.3, 0.5, 0.9, 1.0, 1.5, 3.0, -0.2, -1.0, 100.0, 1e9)

TEXTS = {
    "corpus": ("text.txt",),
    "files": ("table.csv", "table.csv", "series.npy", "*.csv"),
    "trace": ("trace",),
    "call": ("lab:bench", "lab:bench", "lab:wrong", "lab:missing", "missing:bench"),
    "reset_call": ("lab:settle",),
    "set_call": ("lab:settle", "lab:put"),
    "module": ("lab:Net",),
    "estimator": ("sklearn.linear_model:Ridge", "lab:missing"),
    "address": ("tcp://127.0.0.1:9", "ipc://nobody", "nonsense"),
    "port": ("/dev/null", "nonsense"),
    "weights": ("weights.npz", "missing.npz"),
    "file": ("mask.csv", "missing.csv"),
    "level": ("char", "word"),
    "folder": ("runs",),
    "states": ("states",),
    "record": ("recorded",),
    "resume": ("runs",),
    "device": ("cpu", "cuda"),
    "prompt": ("ab", "", "never seen: é"),
    "name": ("a name", "é", "", "x/y"),
    "label": ("a label", "", "x/y, é"),
    "columns": ("a", "b", "missing"),
    "column": ("time", "a"),
    "metrics": ("nrmse", "mse", "missing"),
    "array": ("u", "missing"),
    "characters": ("abcde \n", "ab"),
    "delimiter": (",", ";"),
}
"""Texts by their key, for files of `furnish`. Others are one of two words."""

TYPICAL = {
    "task": ("narma", "memory_recall", "sine_square", "elman_grammar", "mackey_glass", "data", "text"),
    "reservoir": ("esn", "esn", "esn", "gated_esn", "delay_loop", "delay_loop", "python", "nvar"),
    "readout": ("ridge", "ridge", "ridge", "rls", "lms", "sklearn", "torch", "linear"),
}
RARE = (
    "inputs",
    "input_mask",
    "fold",
    "point",
    "resume",
    "trace",
    "call",
    "weights",
    "input_scaling",
    "stop_call",
    "array",
    "engine",
    "device",
)
"""Keys that seldom fit to what else is there."""

OF_TEXTS = ("attention", "esn_lm", "laerc", "linear", "low_rank")
OF_CLASSES = ("gates", "gru")


@cache
def experiment_schema() -> dict[str, Any]:
    """As `reservoir-hw schema` prints it."""
    return schema()


def kinds(section: str) -> dict[str, Any]:
    """The schema of each kind of a section."""
    group = {"task": "tasks", "reservoir": "backends", "readout": "readouts"}[section]
    mapping = experiment_schema()["properties"][section]["discriminator"]["mapping"]
    return {kind: _at(reference) for kind, reference in mapping.items() if kind in available(group)}


def draw_file(random: Random, *, more: float = 0.06) -> dict[str, Any]:
    """A file with a task, a reservoir and a readout, mostly of kinds that go together.

    `more` is how likely each key is that need not be there.
    """
    readout = _kind(random, "readout")
    task = _kind(random, "task")
    if readout in OF_TEXTS:
        task = random.choice(["text"] * 9 + [task])
    elif readout in OF_CLASSES:
        task = random.choice(["data"] * 4 + [task])
    document: dict[str, Any] = {
        section: draw_section(random, section, kind, more=more)
        for section, kind in (("task", task), ("reservoir", _kind(random, "reservoir")), ("readout", readout))
    }
    properties = experiment_schema()["properties"]
    for section, likely in (("training", 0.4), ("run", 0.5), ("baselines", 0.15)):
        if random.random() < likely:
            document[section] = draw(random, properties[section], section, 2 * more)
    if readout in (*OF_TEXTS, *OF_CLASSES, "torch"):
        training = document.setdefault("training", {})
        gradient = training.get("gradient") or draw(random, _at("#/$defs/GradientConfig"), "gradient", more / 2)
        if not {"steps", "epochs"} & gradient.keys():
            gradient[random.choice(["steps", "epochs"])] = 2
        training["gradient"] = {"context": 8, "accelerator": "cpu", **gradient}
    if random.random() < 0.25:
        _vary(random, document, more)
    return document


def draw_section(random: Random, section: str, kind: str, *, more: float = 0.06) -> dict[str, Any]:
    """A task, reservoir or readout of a kind, with what makes it small, and mostly with what its kind needs."""
    found = draw(random, kinds(section)[kind], section, more)
    if section == "task" and kind == "data" and not {"files", "call", "trace"} & found.keys():
        found["files"] = "table.csv"
        if random.random() < 0.3:
            found |= {"files": "series-*.csv", "labels": {"file": "labels.csv"}}
        else:
            found.setdefault("targets", {"columns": ["b"]} if random.random() < 0.7 else {"ahead_steps": 1})
    if kind == "python" and random.random() < 0.9:
        found = {**found, "mode": "run", "call": "lab:bench", "nodes": 4}
    for name, (low, high) in SIZES.items():
        if name in kinds(section)[kind]["properties"] and name not in found and name in _SET:
            least = max(low, _least(kinds(section)[kind]["properties"][name]))
            found[name] = random.randint(least, max(least, high))
    return found


_SET = {"nodes", "train_steps", "test_steps", "sentences", "train_periods", "test_periods", "washout"}
"""Sizes that are written down in any case: their defaults are large."""


def _least(node: dict[str, Any]) -> int:
    return max(int(node.get("minimum", 0)), 1 if "exclusiveMinimum" in node else 0)


def _kind(random: Random, section: str) -> str:
    possible = sorted(set(kinds(section)) - ({*NEEDS_DATA} if section == "task" else set()))
    return random.choice(TYPICAL[section]) if random.random() < 0.75 else random.choice(possible)


def _vary(random: Random, document: dict[str, Any], more: float) -> None:
    section = random.choice(["task", "reservoir", "readout"])
    properties = kinds(section)[document[section]["kind"]]["properties"]
    key = random.choice(sorted(set(properties) - {*RARE, "kind", "vary", "search", "hil"}))
    drawn = [draw(random, properties[key], key, more) for _ in range(random.randint(1, 3))]
    values = [value for number, value in enumerate(drawn) if value not in drawn[:number]]
    if section == "reservoir":
        document[section]["vary"] = {key: values}
    else:
        document["vary"] = {f"{section}.{key}": values}


def _at(reference: str) -> dict[str, Any]:
    return experiment_schema()["$defs"][reference.rpartition("/")[2]]


def draw(random: Random, node: dict[str, Any], key: str, more: float) -> Any:
    """A value of a node of the schema; `key` is the one under which it stands."""
    if "$ref" in node:
        return draw(random, _at(node["$ref"]), key, more)
    if "const" in node:
        return node["const"]
    if "enum" in node:
        return random.choice(node["enum"])
    for choice in ("oneOf", "anyOf"):
        if choice in node:
            return draw(random, _one_of(random, node[choice]), key, more)
    drawn = {"object": _object, "array": _array, "integer": _integer, "number": _number, "string": _text}
    match node.get("type"):
        case "boolean":
            return random.random() < 0.5
        case "null":
            return None
        case str(name):
            return drawn[name](random, node, key, more)
        case _:
            return random.choice([0, 0.5, "x"])


def _one_of(random: Random, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Seldom null, which is what is there anyway, and never an array of a program."""
    possible = [node for node in nodes if not node.get("pattern", "").startswith("^given:")]
    given = [node for node in possible if node.get("type") != "null"]
    return random.choice(given if random.random() < 0.9 else possible)


def _object(random: Random, node: dict[str, Any], key: str, more: float) -> dict[str, Any]:
    properties, required = node.get("properties", {}), node.get("required", [])
    if list(properties) == ["kind"] and "const" not in properties["kind"]:
        section = "task" if key == "task" else "reservoir"
        return draw_section(random, section, random.choice(["narma"] if section == "task" else ["esn", "delay_loop"]))
    found = {}
    for name, one in properties.items():
        # What varies needs keys that mean something: see `_vary`.
        if name in ("vary", "search", "hil", "extends", "sweep"):
            continue
        if name in required or name == "kind" or random.random() < (more / 6 if name in RARE else more):
            found[name] = draw(random, one, name, more)
    others = node.get("additionalProperties")
    if isinstance(others, dict) and others and random.random() < more:
        found["x"] = draw(random, others, key, more)
    return found


def _array(random: Random, node: dict[str, Any], key: str, more: float) -> list[Any]:
    if "prefixItems" in node:
        found = [draw(random, one, key, more) for one in node["prefixItems"]]
        # Most pairs are bounds.
        return sorted(found) if random.random() < 0.8 else found
    count = random.randint(node.get("minItems", 0), node.get("minItems", 0) + 2)
    return [draw(random, node.get("items", {}), key, more) for _ in range(count)]


def _integer(random: Random, node: dict[str, Any], key: str, more: float) -> int:
    least = _least(node)
    low, high = SIZES.get(key, (least, least + 6))
    low, high = max(low, least), max(min(high, int(node.get("maximum", high))), least)
    step = node.get("multipleOf", 1)
    return math.ceil(random.randint(min(low, high), high) / step) * step


def _number(random: Random, node: dict[str, Any], key: str, more: float) -> float:
    low, high = node.get("minimum", -math.inf), node.get("maximum", math.inf)
    above, below = node.get("exclusiveMinimum", -math.inf), node.get("exclusiveMaximum", math.inf)
    if key in ("timeout_s", "wait_s", "settle_s", "boot_wait_s"):
        return 0.05
    possible = [number for number in NUMBERS if low <= number <= high and above < number < below]
    # Most are of the size that people write.
    usual = [number for number in possible if 1e-3 <= abs(number) <= 1.5] or possible
    return random.choice(usual if random.random() < 0.85 else possible)


def _text(random: Random, node: dict[str, Any], key: str, more: float) -> str:
    name = node.get("pattern", "").strip("^$")
    return name if name.isidentifier() else random.choice(TEXTS.get(key, ("", "x")))


LAB = """\
import numpy as np
import torch


def bench(u):
    return np.tanh(np.asarray(u)[..., :1] * np.arange(1, 5))


def wrong(u):
    return np.full((len(u), 3), np.nan)


def settle():
    pass


def put(u):
    global at
    at = u


class Net(torch.nn.Module):
    def __init__(self, nodes, inputs, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(nodes + inputs, outputs)

    def forward(self, states):
        return self.linear(states)
"""


def furnish(folder: Path) -> None:
    """Write the files that drawn experiments name."""
    chance = np.random.default_rng(0)
    (folder / "lab.py").write_text(LAB)
    (folder / "text.txt").write_text("".join(chance.choice(list("abcde \n"), 3000)))
    rows = [f"{t},{a:.4f},{b:.4f},{a - b:.4f}" for t, (a, b) in enumerate(chance.uniform(-1, 1, (120, 2)))]
    (folder / "table.csv").write_text("\n".join(["time,a,b,c", *rows]) + "\n")
    for number in range(8):
        rows = [f"{a:.4f},{b:.4f}" for a, b in chance.normal(number % 2, 1, (10 + number, 2))]
        (folder / f"series-{number}.csv").write_text("\n".join(["a,b", *rows]) + "\n")
    classes = [f"series-{number}.csv,{'even' if number % 2 == 0 else 'odd'}" for number in range(8)]
    (folder / "labels.csv").write_text("\n".join(["file,label", *classes]) + "\n")
    np.save(folder / "series.npy", chance.uniform(-1, 1, (100, 2)))
    np.savetxt(folder / "mask.csv", chance.uniform(-1, 1, (4, 1)), delimiter=",")
    np.savez(folder / "weights.npz", W=chance.uniform(-0.3, 0.3, (5, 5)), W_in=chance.uniform(-1, 1, (5, 1)))
    Experiment(
        {
            "task": {"kind": "narma", "train_steps": 100, "test_steps": 20},
            "reservoir": {"kind": "esn", "nodes": 4},
            "readout": {"kind": "ridge"},
            "run": {"folder": str(folder / "made"), "states": None, "record": str(folder / "trace")},
        }
    ).run(report=False)
