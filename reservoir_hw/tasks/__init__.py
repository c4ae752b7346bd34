"""What a reservoir is driven with, and how its readout's answers are judged."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.tasks.channel_equalisation import ChannelEqualisation as ChannelEqualisation
    from reservoir_hw.tasks.channel_equalisation import ChannelEqualisationConfig as ChannelEqualisationConfig
    from reservoir_hw.tasks.data.task import Data as Data
    from reservoir_hw.tasks.data.task import DataConfig as DataConfig
    from reservoir_hw.tasks.datasets import dataset as dataset
    from reservoir_hw.tasks.elman_grammar.task import ElmanGrammar as ElmanGrammar
    from reservoir_hw.tasks.elman_grammar.task import ElmanGrammarConfig as ElmanGrammarConfig
    from reservoir_hw.tasks.henon import Henon as Henon
    from reservoir_hw.tasks.henon import HenonConfig as HenonConfig
    from reservoir_hw.tasks.japanese_vowels import JapaneseVowels as JapaneseVowels
    from reservoir_hw.tasks.japanese_vowels import JapaneseVowelsConfig as JapaneseVowelsConfig
    from reservoir_hw.tasks.kuramoto_sivashinsky import KuramotoSivashinsky as KuramotoSivashinsky
    from reservoir_hw.tasks.kuramoto_sivashinsky import KuramotoSivashinskyConfig as KuramotoSivashinskyConfig
    from reservoir_hw.tasks.lorenz import Lorenz as Lorenz
    from reservoir_hw.tasks.lorenz import LorenzConfig as LorenzConfig
    from reservoir_hw.tasks.mackey_glass import MackeyGlass as MackeyGlass
    from reservoir_hw.tasks.mackey_glass import MackeyGlassConfig as MackeyGlassConfig
    from reservoir_hw.tasks.memory_recall import MemoryRecall as MemoryRecall
    from reservoir_hw.tasks.memory_recall import MemoryRecallConfig as MemoryRecallConfig
    from reservoir_hw.tasks.narma import Narma as Narma
    from reservoir_hw.tasks.narma import NarmaConfig as NarmaConfig
    from reservoir_hw.tasks.parity import Parity as Parity
    from reservoir_hw.tasks.parity import ParityConfig as ParityConfig
    from reservoir_hw.tasks.prediction.task import ClosedLoop as ClosedLoop
    from reservoir_hw.tasks.santa_fe import SantaFe as SantaFe
    from reservoir_hw.tasks.santa_fe import SantaFeConfig as SantaFeConfig
    from reservoir_hw.tasks.sine_square import SineSquare as SineSquare
    from reservoir_hw.tasks.sine_square import SineSquareConfig as SineSquareConfig
    from reservoir_hw.tasks.task import Evaluation as Evaluation
    from reservoir_hw.tasks.task import Row as Row
    from reservoir_hw.tasks.task import Split as Split
    from reservoir_hw.tasks.task import Table as Table
    from reservoir_hw.tasks.task import Task as Task
    from reservoir_hw.tasks.task import TaskConfig as TaskConfig
    from reservoir_hw.tasks.text.task import Text as Text
    from reservoir_hw.tasks.text.task import TextConfig as TextConfig
    from reservoir_hw.tasks.trace import Trace as Trace
    from reservoir_hw.tasks.trace import TraceConfig as TraceConfig
    from reservoir_hw.tasks.trec import Trec as Trec
    from reservoir_hw.tasks.trec import TrecConfig as TrecConfig
    from reservoir_hw.tasks.validation import ValidationConfig as ValidationConfig

__getattr__, __dir__ = lazy_names(__name__)
