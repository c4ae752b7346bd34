"""Training of everything that is trained by gradients: on a laptop, on a GPU, on several hosts.

    from reservoir_hw.readout.training import TrainingOptions, train

    options = TrainingOptions(steps=2000, batch=32, context=128, learning_rate=3e-4)
    result = train(model, tokens_train, tokens_valid, options=options, folder="runs/first")

Names are imported when they are first asked for (PEP 562), so that options and tokenizers do without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names
from reservoir_hw.core.tokenizer import BpeTokenizer, CharTokenizer, Tokenizer, WordTokenizer, load_tokenizer

if TYPE_CHECKING:
    from reservoir_hw.readout.training._errors import NotFinite
    from reservoir_hw.readout.training.estimate import DriveEstimate, estimate_training
    from reservoir_hw.readout.training.history import Progress, Row
    from reservoir_hw.readout.training.loop import TrainingResult
    from reservoir_hw.readout.training.on_corpus import train
    from reservoir_hw.readout.training.on_states import train_on_states
    from reservoir_hw.readout.training.options import PRESETS, TrainingOptions
    from reservoir_hw.readout.training.shards import HarvestedShards, Shard
    from reservoir_hw.readout.training.weights_file import load_weights, save_weights

__all__ = [
    "PRESETS",
    "BpeTokenizer",
    "CharTokenizer",
    "DriveEstimate",
    "HarvestedShards",
    "NotFinite",
    "Progress",
    "Row",
    "Shard",
    "Tokenizer",
    "TrainingOptions",
    "TrainingResult",
    "WordTokenizer",
    "estimate_training",
    "load_tokenizer",
    "load_weights",
    "save_weights",
    "train",
    "train_on_states",
]

_HOME = {
    "PRESETS": ".options",
    "DriveEstimate": ".estimate",
    "HarvestedShards": ".shards",
    "NotFinite": "._errors",
    "Progress": ".history",
    "Row": ".history",
    "Shard": ".shards",
    "TrainingOptions": ".options",
    "TrainingResult": ".loop",
    "estimate_training": ".estimate",
    "load_weights": ".weights_file",
    "save_weights": ".weights_file",
    "train": ".on_corpus",
    "train_on_states": ".on_states",
}


__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
