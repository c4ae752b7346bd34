"""Write sentences of Elman's grammar as a text: python make_text.py FILE."""

from __future__ import annotations

import sys
from pathlib import Path

from reservoir_hw.tasks.elman_grammar.task import ElmanGrammar


def sentences() -> str:
    """About 60,000 letters, one sentence on each line."""
    task = ElmanGrammar(sentences=2000)
    assert task.train.symbols is not None
    words = [task.words[number] for number in task.train.symbols[0]]
    return " ".join(words).replace(" . ", " .\n") + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(sentences(), encoding="utf-8")
