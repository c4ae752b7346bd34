"""The first experiment file for a user's data: what a look at the data suggests, with a comment on each guess."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tables.configuration import ReadConfig
from reservoir_hw.core.tables.sources import TABLE, Source, all_of, opened
from reservoir_hw.core.tables.table import Table
from reservoir_hw.tasks.data.reading import paths_of
from reservoir_hw.tasks.datasets import found_file

_TIME = re.compile(r"(t|time|date|datetime|timestamp|zeit|temps|tiempo)([ _([].*)?", re.IGNORECASE)
_WASHOUT = 50

_FILE = """\
# An experiment on {data}: {about}.
# Check it:  reservoir-hw check {path}
# Run it:    reservoir-hw run {path}
# Your device in the place of the simulation: reservoir-hw run {path} --reservoir lab.yaml

title: {title}

task:
  kind: data
  files: {files}
{chosen}  test: 0.25                 # {test}
  # folds: {{count: 5}}        # in its place: each fifth is the test once
  # metrics: ["sklearn.metrics:median_absolute_error"]  # beside the usual ones

reservoir:                   # the section to change for real hardware, or: run ... --reservoir lab.yaml
  kind: esn
  nodes: 100
  spectral_radius: 0.9       # smaller values forget sooner
  input_scaling: 0.5         # inputs are brought to the range from -1 to 1 first
  seed: 0

readout:
  kind: ridge
  alpha: gcv                 # the penalty is found on the training
  washout: {washout:<10}        # first steps that are not learned from

baselines:
  - {{kind: nvar, lags: 3, orders: 2}}  # what products of the last three inputs say without any reservoir

run:
  folder: runs               # each run makes a folder of its own in here
"""


def first_file(path: Path, data: str, targets: Sequence[str] = (), labels: str | None = None) -> str:
    """The text of the experiment file `path` on these data: a path or a glob; `labels` is a table with classes.

    Raises `ConfigurationError` for files that cannot be read, for targets that are not there, and where the data do not
    say what they are.
    """
    files = paths_of(data, "--data")
    with opened(files[0], ReadConfig()) as source:
        if len(source.arrays) == 1 or TABLE in source.arrays:
            chosen, about, steps = _of_table(source, targets, learned=labels is None)
        else:
            chosen, about, steps = _of_arrays(source, targets)
    several = len(files) > 1
    if labels is not None:
        if targets:
            raise ConfigurationError("--labels has the class of each file, --targets a number for each row: give one")
        if not several:
            raise ConfigurationError("--labels has a class for each file, and --data names one: give a glob, in quotes")
        chosen = [*chosen, _labels(labels, files)]
    return _FILE.format(
        data=data,
        about=f"{len(files):,} files, the first has {about}" if several else about,
        path=path,
        title=_quoted(f"Own data: {data}"),
        files=_quoted(data),
        chosen="".join(f"  {line}\n" for line in chosen),
        test="of the files, chosen by chance" if several else "the end of the series",
        washout=min(_WASHOUT, steps // 10),
    )


def _of_table(source: Source, targets: Sequence[str], *, learned: bool) -> tuple[list[str], str, int]:
    """Lines of the section `task`, what the file holds, and its steps; `learned`: a column is what is learned."""
    array = source.array(None)
    name = next(iter(source.arrays))
    wide = array.ndim > 1
    known, width, steps = source.header, array.shape[-1] if wide else 1, array.shape[-2 if wide else -1]
    shown = [known[number] if known else number for number in range(width)]
    about = f"{steps:,} rows, columns {', '.join(map(str, shown))}"
    lines, numbers = [], list(range(width))
    clock = next(
        (k for k in numbers if width > 1 and known and _TIME.fullmatch(known[k]) and _is_even(source, k)), None
    )
    if clock is not None:
        lines.append(f"time: {{column: {_quoted(shown[clock])}}}  # a guess: it increases evenly")
        numbers.remove(clock)
    bad = {number: why for number in numbers if (why := _unusable(array, number))}
    lines += [f"# the column {_quoted(shown[number])} {why}: it is no input" for number, why in bad.items()]
    key = "" if name == TABLE else f"array: {_quoted(name)}, "
    numbered = [int(one) if one.isdigit() and one not in known else one for one in targets]
    wanted = all_of(numbered, known, width, "--targets")
    good = [number for number in numbers if number not in bad and number not in wanted]
    if not good:
        raise ConfigurationError(f"{source.path} has no column of numbers that could be an input: {about}")
    guess = "" if wanted else "  # a guess: the last column; or {ahead_steps: 1}, what comes next"
    wanted = wanted or (good[-1:] if len(good) > 1 and learned else [])
    inputs = [shown[number] for number in good if number not in wanted]
    lines.append(f"inputs: {{{key}columns: {_quoted(inputs)}}}")
    if wanted:
        skip = ", missing: skip" if any("empty" in bad.get(number, "") for number in wanted) else ""
        lines.append(f"targets: {{{key}columns: {_quoted([shown[k] for k in wanted])}{skip}}}{guess}")
    elif learned:
        lines.append("targets: {ahead_steps: 1}  # there is one column: what comes next in it")
    return lines, about, steps


def _unusable(array: Any, number: int) -> str | None:
    """Why a column is not read as numbers, if it is not."""
    if not isinstance(array, Table):
        return None
    try:
        values = array.read([number], 0, array.shape[0])
    except ConfigurationError:
        return "holds text"
    return None if np.isfinite(values).all() else "has empty cells"


def _is_even(source: Source, column: int) -> bool:
    try:
        steps = np.diff(source.times(column, "time"))
    except ConfigurationError:
        return False
    return bool(len(steps) and (steps > 0).all() and steps.max() < 1.5 * np.median(steps))


def _of_arrays(source: Source, targets: Sequence[str]) -> tuple[list[str], str, int]:
    """The same of a file of named arrays: one is the inputs, another one the targets."""
    shapes = {name: array.shape for name in source.arrays if (array := source.array(name)).dtype.kind in "fiub"}
    about = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    target = source.array(targets[0]) if len(targets) == 1 else None
    names = [
        name for name in shapes if name not in targets and (target is None or shapes[name][:1] == target.shape[:1])
    ]
    if target is None and len(shapes) == 2 and len({shape[:1] for shape in shapes.values()}) == 1 and not targets:
        names, targets = names[:1], names[1:]
    if len(names) != 1 or len(targets) != 1:
        raise ConfigurationError(
            f"{source.path} holds several arrays ({about}), and it is not clear which are inputs and targets: name the "
            "targets with --targets ARRAY, of as many rows as one other array"
        )
    shape = shapes[names[0]]
    steps = shape[0] if len(shape) < 3 else shape[1]
    return [f"inputs: {{array: {_quoted(names[0])}}}", f"targets: {{array: {_quoted(targets[0])}}}"], about, steps


def _labels(file: str, files: Sequence[Path]) -> str:
    """The line for a table of labels: the column that names the files, and the one beside it."""
    here = {path.name for path in files}
    with opened(found_file(file, "--labels"), ReadConfig()) as source:
        texts = {name: source.texts(name, "--labels") for name in source.header}
    names = [name for name, cells in texts.items() if {Path(cell).name for cell in cells} & here]
    classes = [name for name in texts if name not in names]
    if len(names) != 1 or not classes:
        raise ConfigurationError(
            f"--labels: {file} needs a column with the names of the files, such as {min(here)}, and one with their "
            f"classes; it has {', '.join(texts) or 'no line of names'}"
        )
    best = next((name for name in classes if name.lower() in ("label", "class")), classes[0])
    return f"labels: {{file: {_quoted(file)}, name: {_quoted(names[0])}, label: {_quoted(best)}}}"


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
