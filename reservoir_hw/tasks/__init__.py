"""What a reservoir is driven with, and how its readout's answers are judged."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.tasks.channel_equalisation.task import ChannelEqualisation, ChannelEqualisationConfig
    from reservoir_hw.tasks.datasets import dataset
    from reservoir_hw.tasks.elman_grammar.task import ElmanGrammar, ElmanGrammarConfig
    from reservoir_hw.tasks.japanese_vowels.task import JapaneseVowels, JapaneseVowelsConfig
    from reservoir_hw.tasks.lorenz import Lorenz, LorenzConfig
    from reservoir_hw.tasks.mackey_glass import MackeyGlass, MackeyGlassConfig
    from reservoir_hw.tasks.memory_recall.task import MemoryRecall, MemoryRecallConfig
    from reservoir_hw.tasks.narma.task import Narma, NarmaConfig
    from reservoir_hw.tasks.parity.task import Parity, ParityConfig
    from reservoir_hw.tasks.prediction.task import ClosedLoop
    from reservoir_hw.tasks.santa_fe import SantaFe, SantaFeConfig
    from reservoir_hw.tasks.sine_square.task import SineSquare, SineSquareConfig
    from reservoir_hw.tasks.task import Evaluation, Row, Split, Table, Task, TaskConfig
    from reservoir_hw.tasks.text.task import Text, TextConfig
    from reservoir_hw.tasks.trace.task import Trace, TraceConfig

__all__ = [
    "ChannelEqualisation",
    "ChannelEqualisationConfig",
    "ClosedLoop",
    "ElmanGrammar",
    "ElmanGrammarConfig",
    "Evaluation",
    "JapaneseVowels",
    "JapaneseVowelsConfig",
    "Lorenz",
    "LorenzConfig",
    "MackeyGlass",
    "MackeyGlassConfig",
    "MemoryRecall",
    "MemoryRecallConfig",
    "Narma",
    "NarmaConfig",
    "Parity",
    "ParityConfig",
    "Row",
    "SantaFe",
    "SantaFeConfig",
    "SineSquare",
    "SineSquareConfig",
    "Split",
    "Table",
    "Task",
    "TaskConfig",
    "Text",
    "TextConfig",
    "Trace",
    "TraceConfig",
    "dataset",
]

_HOME = {
    ".channel_equalisation.task": ("ChannelEqualisation", "ChannelEqualisationConfig"),
    ".datasets": ("dataset",),
    ".elman_grammar.task": ("ElmanGrammar", "ElmanGrammarConfig"),
    ".japanese_vowels.task": ("JapaneseVowels", "JapaneseVowelsConfig"),
    ".lorenz": ("Lorenz", "LorenzConfig"),
    ".mackey_glass": ("MackeyGlass", "MackeyGlassConfig"),
    ".memory_recall.task": ("MemoryRecall", "MemoryRecallConfig"),
    ".narma.task": ("Narma", "NarmaConfig"),
    ".parity.task": ("Parity", "ParityConfig"),
    ".prediction.task": ("ClosedLoop",),
    ".santa_fe": ("SantaFe", "SantaFeConfig"),
    ".sine_square.task": ("SineSquare", "SineSquareConfig"),
    ".task": ("Evaluation", "Row", "Split", "Table", "Task", "TaskConfig"),
    ".text.task": ("Text", "TextConfig"),
    ".trace.task": ("Trace", "TraceConfig"),
}

__getattr__ = lazy_names(__name__, {name: module for module, names in _HOME.items() for name in names})
