"""Training of everything that is trained by gradients: on a laptop, on a GPU, on several hosts.

    from reservoir_hw.readout.training import TrainingOptions, train

    options = TrainingOptions(steps=2000, batch=32, context=128, learning_rate=3e-4)
    result = train(model, tokens_train, tokens_valid, options=options, folder="runs/first")

Names are imported when they are first asked for (PEP 562), so that options and tokenizers do without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.core.tokenizer import BpeTokenizer as BpeTokenizer
    from reservoir_hw.core.tokenizer import CharTokenizer as CharTokenizer
    from reservoir_hw.core.tokenizer import Tokenizer as Tokenizer
    from reservoir_hw.core.tokenizer import WordTokenizer as WordTokenizer
    from reservoir_hw.core.tokenizer import load_tokenizer as load_tokenizer
    from reservoir_hw.readout.training.estimate import DriveEstimate as DriveEstimate
    from reservoir_hw.readout.training.estimate import estimate_training as estimate_training
    from reservoir_hw.readout.training.folder import load_weights as load_weights
    from reservoir_hw.readout.training.folder import save_weights as save_weights
    from reservoir_hw.readout.training.history import Progress as Progress
    from reservoir_hw.readout.training.history import Row as Row
    from reservoir_hw.readout.training.loop import NotFinite as NotFinite
    from reservoir_hw.readout.training.loop import TrainingResult as TrainingResult
    from reservoir_hw.readout.training.options import PRESETS as PRESETS
    from reservoir_hw.readout.training.options import TrainingOptions as TrainingOptions
    from reservoir_hw.readout.training.shards import HarvestedShards as HarvestedShards
    from reservoir_hw.readout.training.shards import Shard as Shard
    from reservoir_hw.readout.training.train_model import train as train

__getattr__, __dir__ = lazy_names(__name__)
