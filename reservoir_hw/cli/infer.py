"""`reservoir-hw infer`."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import own_stdout, print_json, print_tables, progress_bar, say
from reservoir_hw.core.errors import ConfigurationError, StreamStopped

if TYPE_CHECKING:
    import numpy as np

    from reservoir_hw.core.tables.configuration import ReadConfig
    from reservoir_hw.experiment.deploy.pipe import Lines
    from reservoir_hw.experiment.deploy.watching import Watch
    from reservoir_hw.experiment.states.progress import Progress
    from reservoir_hw.readout.edge import EdgeRunner
    from reservoir_hw.readout.edge.manifest import Manifest


def infer(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `reservoir-hw export` wrote.")],
    reservoir: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Reservoir file; one for each reservoir of the model.")
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE|FOLDER|-",
            help="Series: csv, npy, npz, parquet, HDF5, NetCDF, mat, or a folder of these. (default: -, lines)",
        ),
    ] = None,
    array: Annotated[str | None, typer.Option(metavar="NAME", help="Which array of a file with several.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHAR", help="Between columns of a text. (default: as it looks)")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(metavar=".|,", help="Decimal sign of a text. (default: as it looks)")
    ] = None,
    skip_lines: Annotated[int, typer.Option(min=0, metavar="N", help="At the top of a text, not looked at.")] = 0,
    forecast: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Answer with N steps that the model, fed with its answers, goes on."),
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(metavar="FILE|none", help="Series that is driven first; none: the first answers as they are."),
    ] = None,
    outside: Annotated[
        Literal["pass", "nan", "stop"],
        typer.Option(help="What is done where inputs or answers leave the range of training, or a reservoir freezes."),
    ] = "pass",
    max_behind: Annotated[
        int | None, typer.Option(min=0, metavar="K", help="End a pipe where more than K lines wait for their answer.")
    ] = None,
    output: Annotated[str, typer.Option(metavar="FILE|-", help="npy or csv; - is standard output.")] = "-",
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="What a language model continues.")] = None,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="How many it writes.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely token.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Choose among the K most likely. (default: all)")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="P", help="Choose among the likeliest that sum to P. (default: all)"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of tokens.")] = 0,
    expect: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Take no other bundle: what `bundle info` shows as sha256.")
    ] = None,
    any_device: Annotated[
        bool, typer.Option("--any-device", help="Drive another device than the one of the training.")
    ] = False,
    verify_probe: Annotated[
        bool, typer.Option("--verify-probe", help="First compare what each device answers with the recorded response.")
    ] = False,
    repetitions: Annotated[
        int | None, typer.Option(min=1, metavar="R", help="Play each input so often. (default: as in training)")
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="Go step by step and show where the time goes, on standard error.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the latency budget: .png, .pdf or .svg.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a bundle beside its reservoirs; needs no torch.

    Lines of standard input are answered one by one, as they come. The first answers from rest are nan: as many as the
    bundle has for its washout. Ctrl-C ends it; what was written stays. With --json everything is printed at the end,
    and nothing before it. A table with a header gives columns by name to a model that has names for them. A model of
    classes answers with one label for each series.
    """
    from reservoir_hw.experiment.deploy.infer import (
        check_probe,
        latency_figure,
        latency_table,
        read_warmup,
        require_figure,
        require_place,
        require_times,
    )
    from reservoir_hw.experiment.deploy.pipe import Lines
    from reservoir_hw.experiment.deploy.series_files import read_options
    from reservoir_hw.experiment.deploy.watching import Watch
    from reservoir_hw.readout.edge import EdgeRunner

    timed = latency or figure is not None
    if (json or output == "-") and sys.stdout is None:
        raise ConfigurationError("standard output is closed: give --output FILE, without --json")
    if output != "-":
        require_place(Path(output), "--output")
    if figure is not None:
        require_figure(figure)
    lines = Lines(sys.stdin if (input_ or "-") == "-" else None, max_behind)
    if max_behind is not None and (not lines.live or json or output.lower().endswith(".npy")):
        raise ConfigurationError("--max-behind is for lines of a pipe that are answered at once: no file, json or npy")
    with own_stdout(json):
        with EdgeRunner(bundle, reservoir, any_device=any_device, repetitions=repetitions, expect=expect) as runner:
            loss = runner.manifest.loss
            if loss is not None and (loss.accepted or loss.judged_on == "nothing"):
                say(str(loss))
            facts: dict[str, Any] = {"model": runner.manifest.model, "precision": runner.manifest.precision}
            facts["casts"] = [asdict(cast) for cast in runner.casts]
            if verify_probe:
                facts["probe"] = check_probe(runner)
                for number, seen in enumerate(facts["probe"]):
                    say(f"reservoir {number} answers as recorded: deviation {seen['deviation']:.2f}")
            if runner.manifest.input.dtype == "int64":
                if prompt is None:
                    raise ConfigurationError(f"{runner.manifest.model} continues a text: give it with --prompt TEXT")
                if input_ is not None:
                    raise ConfigurationError(f"{runner.manifest.model} continues a text, not a series: no --input")
                if forecast is not None:
                    raise ConfigurationError(f"{runner.manifest.model} continues a text: give --tokens, no --forecast")
                if warmup not in (None, "none") or outside != "pass" or max_behind is not None:
                    raise ConfigurationError(
                        f"{runner.manifest.model} continues a text: --warmup, --outside and --max-behind are for series"
                    )
                choices: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
                shown = output == "-" and not json and sys.stdout.isatty()
                # Whoever sees the text come needs no other progress.
                with contextlib.nullcontext(lambda *_: None) if shown else progress_bar() as progress:
                    pieces = _generated(runner, prompt, tokens, choices, progress)
                    if json and output == "-":
                        facts["text"] = "".join(pieces)
                    else:
                        _write(output, pieces, end="\n")
            elif prompt is not None:
                raise ConfigurationError(f"{runner.manifest.model} reads series, not text: give --input, no --prompt")
            else:
                if skip_lines and (input_ or "-") == "-":
                    raise ConfigurationError("--skip-lines is for a file or a folder: give it with --input")
                read = read_options(delimiter, decimal, skip_lines)
                if forecast is not None and outside != "pass":
                    raise ConfigurationError(f"--outside {outside} is about answers to rows: not with --forecast")
                watch = Watch(runner, outside, say)
                if warmup != "none":
                    watch.washout = runner.washout if forecast is None else 0
                    watch.warmup = watch.warmup if warmup is None else read_warmup(Path(warmup), runner, read)
                try:
                    with watch.observing():
                        _series(
                            runner, input_ or "-", output, facts, read, array, watch, lines,
                            forecast=forecast, timed=timed, json=json,
                        )  # fmt: skip
                finally:
                    for said in (*watch.lines(), *lines.told()):
                        say(said)
                facts |= {"washout": watch.washout, "outside": watch.figures(), "pipe": lines.figures()}
            stages = runner.latency()
            facts["clipped"] = runner.clipped
            if timed:
                require_times(stages)
                facts["latency"] = [asdict(stage) for stage in stages]
        if figure is not None:
            title = f"{facts['model']}, {facts['precision']}"
            latency_figure(stages, title).savefig(figure, dpi=150)
            say(f"{figure} is written")
    if json:
        print_json(facts)
        return
    if latency:
        # Outputs alone go to standard output.
        with contextlib.redirect_stdout(sys.stderr):
            print_tables([latency_table(stages)])
    if facts["clipped"]:
        say(f"{facts['clipped']:,} values were clipped into the range of a reservoir")


def _generated(
    runner: EdgeRunner, prompt: str, tokens: int, choices: dict[str, Any], progress: Progress
) -> Iterator[str]:
    progress("reading the prompt", 0, tokens)
    for number, piece in enumerate(runner.generate(prompt, tokens, **choices)):
        if number == 0:
            # The prompt crossed as a whole: what counts is the time of a token.
            runner.stopwatch.clear()
        progress("writing", number, tokens)
        yield piece


def _series(
    runner: EdgeRunner,
    source: str,
    output: str,
    facts: dict[str, Any],
    read: ReadConfig,
    array: str | None,
    watch: Watch,
    lines: Lines,
    *,
    forecast: int | None,
    timed: bool,
    json: bool,
) -> None:
    """Series from files as a whole, or line by line from standard input.

    Steps that were answered by earlier calls before an error are kept.
    """
    import numpy as np

    from reservoir_hw.experiment.deploy.infer import run_series, stream_series
    from reservoir_hw.experiment.deploy.series_files import facts_of, header_of, line_of, lines_of, write_npy

    manifest, series = runner.manifest, runner.manifest.series
    to_npy = output.lower().endswith(".npy")
    in_facts = json and output == "-"
    labels = series is not None and bool(series.classes)
    whole = runner.whole_sequences or manifest.reads_last or forecast is not None
    by_line = source == "-" and not whole and not (labels and not to_npy)
    if source == "-" and sys.stdin is None:
        raise ConfigurationError("standard input is closed: give --input FILE")
    if by_line and not to_npy and not in_facts:
        answers = map(line_of, stream_series(runner, lines, watch))
        _write(output, answers, header=header_of(series), live=lines.live)
        return
    folder = source != "-" and Path(source).is_dir()

    def put(found: dict[str, np.ndarray]) -> None:
        if to_npy:
            write_npy(Path(output), np.concatenate(list(found.values())))
        elif not in_facts:
            _write(output, lines_of(found, series, folder=folder))
        elif folder:
            facts["files"] = [{"file": name, **facts_of(outputs, series)} for name, outputs in found.items()]
        else:
            facts.update(facts_of(next(iter(found.values())), series))

    found: dict[str, np.ndarray] = {}
    # Outputs (batch, steps, outputs) of each call.
    answered: list[np.ndarray] = []
    file = source
    try:
        if by_line:
            for row in stream_series(runner, lines, watch):
                answered.append(row[None, None])
            empty = np.zeros((1, 0, *manifest.output.shape), np.float32)
            found[file] = np.concatenate(answered, 1) if answered else empty
        else:
            given = _given(manifest, source, read, array, lines)
            batches, steps = (max(axis) for axis in zip(*(inputs.shape[:2] for inputs in given.values()), strict=True))
            if batches > 1 and not (to_npy or in_facts or labels):
                raise ConfigurationError(f"csv holds one sequence, and there are {batches}: --output FILE.npy")
            if to_npy and forecast is None and any(inputs.shape[1] != steps for inputs in given.values()):
                raise ConfigurationError("npy holds series of one length, and these differ: --output FILE.csv")
            for file, inputs in given.items():
                answered, watch.name = [], file
                with progress_bar() as progress:
                    outputs = run_series(
                        runner, inputs, progress, stepwise=timed, answered=answered, forecast=forecast, watch=watch
                    )
                found[file] = outputs
                answered = []
    except BaseException as error:
        # Of a model that reads the last step, what came before it is no answer; --json is one document, at the end.
        if answered and not manifest.reads_last and not labels:
            found[file] = np.concatenate(answered, 1)
        if found and not in_facts:
            count = sum(outputs.shape[1] for outputs in found.values())
            where = "written" if output == "-" else f"in {output}"
            try:
                put(found)
                error.add_note(f"the {count} steps that were answered are {where}")
            except (OSError, ValueError) as failed:
                error.add_note(f"the {count} steps that were answered could not be written: {failed}")
        raise
    put(found)


def _given(manifest: Manifest, source: str, read: ReadConfig, array: str | None, lines: Lines) -> dict[str, np.ndarray]:
    """Series (batch, time, inputs) by the names of their files: all are read before anything is driven."""
    import numpy as np

    from reservoir_hw.experiment.deploy.series_files import numbers, read_series, series_paths

    if source == "-":
        names = () if manifest.series is None else manifest.series.input_names
        rows = [row for _, row in numbers(lines, "stdin", names, live=lines.live)]
        if len({len(row) for row in rows}) != 1:
            raise ConfigurationError("stdin: no rows of numbers, or of different lengths")
        return {"stdin": np.stack(rows)[None]}
    return {path.name: read_series(path, manifest, read, array, say) for path in series_paths(Path(source))}


def _write(output: str, pieces: Iterator[str], end: str = "", *, header: str = "", live: bool = False) -> None:
    """Each piece as it comes, and at once.

    Who reads may have had enough of a file or a text. A `live` stream is `StreamStopped` there, as somebody relied on
    the answers to come. The output is opened when the first piece is there: an error before it leaves an older file as
    it was.
    """
    first = next(pieces, "")
    first = first and header + first
    target: TextIO = sys.stdout if output == "-" else open(output, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    try:
        for count, piece in enumerate(itertools.chain([first], pieces, [end])):
            try:
                with _named(output):
                    target.write(piece)
                    target.flush()
            except BrokenPipeError:
                # Who reads has had enough. Python would complain once more when it flushes at its end.
                if output == "-":
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                if live:
                    raise StreamStopped(f"who read the answers has left, after {count} of them were written") from None
                return
    finally:
        if output != "-":
            with _named(output), contextlib.suppress(BrokenPipeError):
                target.close()


@contextlib.contextmanager
def _named(output: str) -> Iterator[None]:
    """Errors of writing say where: that of a full disk does not know."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or ("standard output" if output == "-" else output)
        raise
