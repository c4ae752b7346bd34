"""Baselines as an experiment file names them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tokenizer import Corpus
from reservoir_hw.readout.configuration import NamedConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.tasks.elman_grammar.task import ElmanGrammar
from reservoir_hw.tasks.task import Evaluation, Task

if TYPE_CHECKING:
    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer
    from reservoir_hw.readout.models.token_model import TokenModel


class BaselineConfig(NamedConfig):
    """What every kind of baseline can be told. A kind adds `kind: Literal["..."]` and its own fields."""

    named = "{kind}"

    def check_task(self, task: Task) -> None:
        """Raise `ConfigurationError` where this baseline cannot be run on this task."""
        if task.closed_loop:
            raise ConfigurationError(
                f"baseline {self.kind} cannot be run in a closed loop: take nvar, volterra or esn, or remove it"
            )
        if task.train.lengths is not None:
            raise ConfigurationError(
                f"baseline {self.kind} cannot be run with sequences of different lengths; remove it"
            )
        if task.train.counted is not None:
            raise ConfigurationError(
                f"baseline {self.kind} learns from every step, and some have no target: take nvar, volterra or esn"
            )

    @abstractmethod
    def evaluate(self, task: Task) -> Evaluation:
        """Train the baseline on a task, and judge it."""


# ---- Language models without a reservoir, trained as the readouts are: on the same tokens, by the same section.


Rate = Annotated[float, Field(ge=0, lt=1)]

_NOT_OF_THE_MODEL = {"kind", "seed", "training"}


class TransformerConfig(TokenModelConfig):
    """The character transformer of Köster & Uchida 2026, section II.C."""

    kind: Literal["transformer"]
    named = "transformer({layers}×{embedding})"
    embedding: PositiveInt = 16
    hidden: PositiveInt = 64
    heads: PositiveInt = 4
    layers: PositiveInt = 4
    dropout: Rate = 0.1
    causal: bool = Field(default=True, description="false: as published, which needs gradient.predict: last")

    def _make(self, vocabulary: int, _layers: Sequence[ReservoirLayer], context: int, /) -> TokenModel:
        from reservoir_hw.readout.baselines.transformer import CharTransformer

        return CharTransformer(vocabulary, context=context, **self.model_dump(exclude=_NOT_OF_THE_MODEL))


class GptConfig(TokenModelConfig):
    """The decoder of GPT-2, at any size."""

    kind: Literal["gpt"]
    named = "gpt({layers}×{width})"
    width: PositiveInt
    layers: PositiveInt
    heads: PositiveInt = 4
    dropout: Rate = 0.0

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be divided among {self.heads} heads: it must be a multiple")
        return self

    def _make(self, vocabulary: int, _layers: Sequence[ReservoirLayer], context: int, /) -> TokenModel:
        from reservoir_hw.readout.baselines.transformer import Gpt

        return Gpt(vocabulary, context=context, **self.model_dump(exclude=_NOT_OF_THE_MODEL))


class RecurrentConfig(TokenModelConfig):
    """A trained recurrence, of the cell that `kind` names."""

    named = "{kind}({hidden})"

    hidden: PositiveInt
    embedding: PositiveInt | None = Field(default=None, description="channels; null: tokens are one-hot")
    layers: PositiveInt = 1
    dropout: Rate = 0.0

    def _make(self, vocabulary: int, _layers: Sequence[ReservoirLayer], _context: int, /) -> TokenModel:
        from reservoir_hw.readout.baselines.recurrent import RecurrentLM

        return RecurrentLM(vocabulary, cell=self.kind, **self.model_dump(exclude=_NOT_OF_THE_MODEL))


class LstmConfig(RecurrentConfig):
    """An LSTM (Hochreiter & Schmidhuber 1997)."""

    kind: Literal["lstm"]


class GruConfig(RecurrentConfig):
    """A GRU (Cho et al. 2014)."""

    kind: Literal["gru"]


class SrnConfig(TokenModelConfig):
    """The simple recurrent network of Elman, as Tong et al. 2007 trained it (section 3.1)."""

    kind: Literal["srn"]
    hidden: PositiveInt = 70
    outputs: Literal["logistic", "softmax"] = Field(
        default="logistic", description="logistic: as published, each for itself; softmax: as the other models"
    )
    gradient: Literal["previous_step", "through"] = Field(
        default="previous_step", description="previous_step: as published; through: to the start of a window"
    )
    stages: bool = Field(
        default=False,
        description="elman_grammar: learn 0, 1/3, 2/3 and all of its complex sentences, each as training.gradient says",
    )

    @property
    def label(self) -> str:
        """SRN(hidden), and what of it is not as published."""
        softmax = " softmax" if self.outputs == "softmax" else ""
        return f"SRN({self.hidden}){softmax}{' through' if self.gradient == 'through' else ''}"

    def lessons(self, task: Task) -> dict[str, Corpus]:
        """With `stages` the sentences of each, with the names that `train_in_stages` gives their folders."""
        if not self.stages:
            return super().lessons(task)
        if not isinstance(task, ElmanGrammar):
            raise ConfigurationError("stages: only the task elman_grammar has simpler sentences; leave it out")
        whole = task.complex_share
        simpler = {f"stage-{share:g}": task.training_words(share) for share in (0, whole / 3, 2 * whole / 3)}
        return {**simpler, f"stage-{whole:g}": task.tokens.tokens_train}

    def _make(self, vocabulary: int, _layers: Sequence[ReservoirLayer], _context: int, /) -> TokenModel:
        from reservoir_hw.readout.baselines.recurrent import SRN

        return SRN(vocabulary, **self.model_dump(exclude={*_NOT_OF_THE_MODEL, "stages"}))
