"""Language models without a reservoir, as an experiment file names them among its baselines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt

from reservoir_hw.core.errors import MissingExtra
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.readout.models.configuration import TokenModelConfig

if TYPE_CHECKING:
    from reservoir_hw.readout.models.token_model import TokenModel

Rate = Annotated[float, Field(ge=0, lt=1)]


class TrainedBaselineConfig(TokenModelConfig):
    """Trained as the readouts are: on the same tokens and windows, by the same section `training.gradient`."""

    def build(
        self,
        vocabulary: int,
        reservoirs: Sequence[Reservoir] = (),
        twins: Sequence[Reservoir] = (),
        *,
        context: int = 0,
    ) -> TokenModel:
        """The model, untrained. Weights depend on `seed` alone. Raises `MissingExtra` without torch."""
        del reservoirs, twins
        try:
            import torch
        except ImportError as error:
            raise MissingExtra(f"a language model needs torch: pip install 'reservoir-hw[train]' ({error})") from error
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._made(vocabulary, context)

    @abstractmethod
    def _made(self, vocabulary: int, context: int) -> TokenModel: ...


class TransformerConfig(TrainedBaselineConfig):
    """The character transformer of Köster & Uchida 2026, section II.C."""

    kind: Literal["transformer"]
    embedding: PositiveInt = 16
    hidden: PositiveInt = 64
    heads: PositiveInt = 4
    layers: PositiveInt = 4
    dropout: Rate = 0.1
    causal: bool = Field(default=True, description="false: as published, which needs gradient.predict: last")

    @property
    def label(self) -> str:
        """transformer(layers×embedding)."""
        return f"transformer({self.layers}×{self.embedding})"

    def _made(self, vocabulary: int, context: int) -> TokenModel:
        from reservoir_hw.readout.baselines.transformer import CharTransformer

        return CharTransformer(vocabulary, context=context, **self.model_dump(exclude={"kind", "seed"}))


class GptConfig(TrainedBaselineConfig):
    """The decoder of GPT-2, at any size."""

    kind: Literal["gpt"]
    width: PositiveInt
    layers: PositiveInt
    heads: PositiveInt = 4
    dropout: Rate = 0.0

    @property
    def label(self) -> str:
        """gpt(layers×width)."""
        return f"gpt({self.layers}×{self.width})"

    def _made(self, vocabulary: int, context: int) -> TokenModel:
        from reservoir_hw.readout.baselines.gpt import Gpt

        return Gpt(vocabulary, context=context, **self.model_dump(exclude={"kind", "seed"}))


class RecurrentConfig(TrainedBaselineConfig):
    """A trained recurrence, of the cell that `kind` names."""

    hidden: PositiveInt
    embedding: PositiveInt | None = Field(default=None, description="channels; null: tokens are one-hot")
    layers: PositiveInt = 1
    dropout: Rate = 0.0

    @property
    def label(self) -> str:
        """lstm(hidden) or gru(hidden)."""
        return f"{self.kind}({self.hidden})"

    def _made(self, vocabulary: int, context: int) -> TokenModel:
        from reservoir_hw.readout.baselines.recurrent import RecurrentLM

        del context
        return RecurrentLM(vocabulary, cell=self.kind, **self.model_dump(exclude={"kind", "seed"}))


class LstmConfig(RecurrentConfig):
    """An LSTM (Hochreiter & Schmidhuber 1997)."""

    kind: Literal["lstm"]


class GruConfig(RecurrentConfig):
    """A GRU (Cho et al. 2014)."""

    kind: Literal["gru"]
