"""`reservoir-hw infer`."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import own_stdout, print_json, print_tables, progress_bar
from reservoir_hw.core.errors import ConfigurationError

if TYPE_CHECKING:
    from reservoir_hw.experiment.states.progress import Progress
    from reservoir_hw.readout.edge import EdgeRunner


def infer(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `reservoir-hw export` wrote.")],
    reservoir: Annotated[
        list[Path] | None,
        typer.Option("--reservoir", metavar="FILE", help="Reservoir file; one for each reservoir of the model."),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="FILE|-", help="Series: npy, csv or txt. (default: -, lines of standard input)"
        ),
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

    Lines of standard input are answered one by one, as they come. Ctrl-C ends it; what was written stays. With
    --json everything is printed at the end, and nothing before it.
    """
    from reservoir_hw.experiment.deploy.infer import (
        check_probe,
        latency_figure,
        latency_table,
        require_figure,
        require_place,
        require_times,
    )
    from reservoir_hw.readout.edge import EdgeRunner

    timed = latency or figure is not None
    if (json or output == "-") and sys.stdout is None:
        raise ConfigurationError("standard output is closed: give --output FILE, without --json")
    if output != "-":
        require_place(Path(output), "--output")
    if figure is not None:
        require_figure(figure)
    facts: dict[str, Any] = {}
    with own_stdout(json):
        with EdgeRunner(bundle, reservoir, any_device=any_device, repetitions=repetitions) as runner:
            facts |= {"model": runner.manifest.model, "precision": runner.manifest.precision}
            facts["casts"] = [asdict(cast) for cast in runner.casts]
            if verify_probe:
                facts["probe"] = check_probe(runner)
                for number, seen in enumerate(facts["probe"]):
                    typer.echo(f"reservoir {number} answers as recorded: deviation {seen['deviation']:.2f}", err=True)
            if runner.manifest.input.dtype == "int64":
                if prompt is None:
                    raise ConfigurationError(f"{runner.manifest.model} continues a text: give it with --prompt TEXT")
                if input_ is not None:
                    raise ConfigurationError(f"{runner.manifest.model} continues a text, not a series: no --input")
                choices: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
                shown = output == "-" and not json and sys.stdout.isatty()
                with contextlib.nullcontext(_unseen) if shown else progress_bar() as progress:
                    pieces = _generated(runner, prompt, tokens, choices, progress)
                    if json and output == "-":
                        facts["text"] = "".join(pieces)
                    else:
                        _write(output, pieces, end="\n")
            elif prompt is not None:
                raise ConfigurationError(f"{runner.manifest.model} reads series, not text: give --input, no --prompt")
            else:
                _series(runner, input_ or "-", output, facts, timed=timed, json=json)
            stages = runner.latency()
            facts["clipped"] = runner.clipped
            if timed:
                require_times(stages)
                facts["latency"] = [stage.as_dict() for stage in stages]
        if figure is not None:
            title = f"{facts['model']}, {facts['precision']}"
            latency_figure(stages, title).savefig(figure, dpi=150)
            typer.echo(f"{figure} is written", err=True)
    if json:
        print_json(facts)
        return
    if latency:
        # Outputs alone go to standard output.
        with contextlib.redirect_stdout(sys.stderr):
            print_tables([latency_table(stages)])
    if facts["clipped"]:
        typer.echo(f"{facts['clipped']:,} values were clipped into the range of a reservoir", err=True)


def _unseen(what: str, done: int, total: int) -> None:
    """Whoever sees the text come needs no other progress."""


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


def _series(runner: EdgeRunner, source: str, output: str, facts: dict[str, Any], *, timed: bool, json: bool) -> None:
    """Series from a file as a whole, or line by line from standard input.

    Steps that were answered by earlier calls before an error are kept.
    """
    import numpy as np

    from reservoir_hw.experiment.deploy.infer import line_of, numbers, read_series, run_series, stream_series, write_npy

    to_npy = output.lower().endswith(".npy")
    by_line = source == "-" and not runner.whole_sequences and not runner.manifest.reads_last
    if source == "-" and sys.stdin is None:
        raise ConfigurationError("standard input is closed: give --input FILE")
    in_facts = json and output == "-"
    if by_line and not to_npy and not in_facts:
        _write(output, map(line_of, stream_series(runner, sys.stdin)))
        return

    def put(outputs: np.ndarray) -> None:
        if to_npy:
            write_npy(Path(output), outputs)
        elif in_facts:
            facts["outputs"] = outputs.tolist()
        else:
            _write(output, map(line_of, outputs[0]))

    # Outputs (batch, steps, outputs) of each call.
    answered: list[np.ndarray] = []
    try:
        if by_line:
            for row in stream_series(runner, sys.stdin):
                answered.append(row[None, None])
            empty = np.zeros((1, 0, *runner.manifest.output.shape), np.float32)
            outputs = np.concatenate(answered, 1) if answered else empty
        else:
            if source == "-":
                rows = [row for _, row in numbers(sys.stdin, "stdin")]
                if len({len(row) for row in rows}) != 1:
                    raise ConfigurationError("stdin: no rows of numbers, or of different lengths")
                inputs = np.stack(rows)[None]
            else:
                inputs = read_series(source, lambda said: typer.echo(said, err=True))
            if len(inputs) > 1 and not to_npy and not in_facts:
                raise ConfigurationError(f"csv holds one sequence, and there are {len(inputs)}: --output FILE.npy")
            with progress_bar() as progress:
                outputs = run_series(runner, inputs, progress, stepwise=timed, answered=answered)
    except BaseException as error:
        # Of a model that reads the last step, what came before it is no answer; --json is one document, at the end.
        if answered and not runner.manifest.reads_last and not in_facts:
            where = "written" if output == "-" else f"in {output}"
            outputs = np.concatenate(answered, 1)
            try:
                put(outputs)
                error.add_note(f"the {outputs.shape[1]} steps that were answered are {where}")
            except OSError as failed:
                error.add_note(f"the {outputs.shape[1]} steps that were answered could not be written: {failed}")
        raise
    put(outputs)


def _write(output: str, pieces: Iterator[str], end: str = "") -> None:
    """Each piece as it comes, and at once.

    The output is opened when the first piece is there: an error before it leaves an older file as it was.
    """
    first = next(pieces, "")
    target: TextIO = sys.stdout if output == "-" else open(output, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    try:
        for piece in itertools.chain([first], pieces, [end]):
            try:
                with _named(output):
                    target.write(piece)
                    target.flush()
            except BrokenPipeError:
                # Who reads has had enough. Python would complain once more when it flushes at its end.
                if output == "-":
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
