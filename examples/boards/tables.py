"""Make the tables of the README from the rows of finished runs.

    python -m examples.boards.tables
    python -m examples.boards.tables narma_board=RUN grammar_board=RUN    # keeps the rows of these runs first

`rows/narma_BOARD.json` and `rows/grammar_BOARD.json` hold what `metrics.json` of a run of `narma.yaml` and of
`../elman_grammar/experiment.yaml` says, as far as the tables need it. BOARD is `function`, `emulated`, `firmware` or
`server`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, table

HERE = Path(__file__).resolve().parent
BOARDS = {"function": "the function", "emulated": "emulated board", "firmware": "firmware", "server": "C server"}
GRAMMAR = {"cosine": "cosine", "agreement": "verb agreement"}


def rows_of(task: str, board: str) -> KeptRows:
    """Those of a run."""
    return KeptRows.read(HERE / "rows" / f"{task}_{board}.json")


def agreement() -> list[str]:
    """Each figure on each board, to six digits."""
    figures = [("narma", "nmse", "NARMA10, NMSE")]
    figures += [("grammar", metric, f"Elman's grammar, {title}") for metric, title in GRAMMAR.items()]
    body = []
    for task, metric, title in figures:
        on_boards = (rows_of(task, board).only(baselines=False).values(metric)[0] for board in BOARDS)
        body.append([title, *(f"{value:g}" for value in on_boards)])
    return table(["", *BOARDS.values()], body)


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["nmse", "nrmse", *GRAMMAR])
    replace_tables(HERE / "README.md", {"agreement": agreement()})


if __name__ == "__main__":
    main()
