"""One experiment on a simulation, on a bench of instruments and on a board, side by side.

    python examples/virtual_bench/side_by_side.py [FOLDER]

Bench and board are emulated by processes of this computer, behind sockets of their own and a serial line. The script
writes `side_by_side.png` to a folder, `runs/side_by_side` by default.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.core.figure_style import panels
from reservoir_hw.experiment.run.result import Result

HERE = Path(__file__).resolve().parent
EXPERIMENT = HERE / "narma.yaml"
SHOWN = slice(100, 180)  # steps of the test
EMULATED = {
    "a bench of instruments, emulated": ["bench", "--dialect", "keysight", "--port", "0"],
    "a board on a serial line, emulated": ["board"],
}


@contextmanager
def emulated(arguments: list[str], file: Path) -> Iterator[Path]:
    """The reservoir file of an emulated device, while its process runs."""
    command = [sys.executable, "-m", "reservoir_hw.cli", "emulate", *arguments, "-o", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            # The line comes when the device is there.
            if process.stdout is None or not process.stdout.readline():
                raise SystemExit(f"`emulate {arguments[0]}` ended before its device was there")
            yield file
        finally:
            process.terminate()


def draw(results: dict[str, Result], reservoirs: dict[str, Path | None], path: Path) -> None:
    """A row of panels for each device: what its nodes answer, and what its readout makes of that."""
    figure, grid = panels(10.5, 2.3 * len(results), len(results), 2, sharex="col", width_ratios=[1, 2])
    for (nodes, answers), (title, result) in zip(grid, results.items(), strict=True):
        drive = result.task.test.inputs[:1, : SHOWN.stop]
        with open_reservoir(reservoirs[title] or EXPERIMENT, inputs=drive.shape[-1]) as reservoir:
            reservoir.reset()
            states = reservoir.run(drive)[0, SHOWN]
        steps = range(*SHOWN.indices(SHOWN.stop))
        nodes.imshow(states.T, aspect="auto", cmap="viridis", extent=(SHOWN.start, SHOWN.stop, states.shape[1], 0))
        nodes.set(title=title, ylabel="node")
        answers.plot(steps, result.targets()[0, SHOWN, 0], color="black", linewidth=1, label="wanted")
        answers.plot(steps, result.outputs()[0, SHOWN, 0], color="tab:orange", linewidth=1.5, label="answered")
        error = result.rows[0].evaluation.metrics["nrmse"]
        answers.set(title=f"the readout's answers to NARMA10: error (NRMSE) {error:.3f}", ylabel="output")
    grid[0, 1].legend(loc="upper left", ncols=2, frameon=False)
    grid[0, 1].margins(y=0.2)
    for axes in grid[-1]:
        axes.set_xlabel("step of the test")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run the experiment three times, print its errors and write the picture."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/side_by_side")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        reservoirs: dict[str, Path | None] = {"a simulation of the loop": None}
        for title, arguments in EMULATED.items():
            reservoirs[title] = stack.enter_context(emulated(arguments, folder / f"{arguments[0]}.yaml"))
        few = {"run.point": 0, "baselines": [], "run.folder": str(folder)}
        results = {}
        for title, file in reservoirs.items():
            results[title] = Experiment.from_file(EXPERIMENT, reservoir=file, set=few).run(report=False)
            print(f"{title}: NRMSE {results[title].rows[0].evaluation.metrics['nrmse']:.3f}", flush=True)
        draw(results, reservoirs, folder / "side_by_side.png")
    print(f"The picture is {folder / 'side_by_side.png'}")


if __name__ == "__main__":
    main()
