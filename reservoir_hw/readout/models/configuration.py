"""Language models as an experiment file names them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.arrays import import_torch
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.tokenizer import Corpus
from reservoir_hw.readout.configuration import GradientReadoutConfig
from reservoir_hw.readout.models.classifier_configuration import AroundReservoir
from reservoir_hw.tasks.task import Task, Tokens

if TYPE_CHECKING:
    from torch import nn

    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer
    from reservoir_hw.readout.models.token_model import TokenModel


# Of a one-hot embedding.
_MOST_CHANNELS = 1 << 14


class TokenModelConfig(GradientReadoutConfig):
    """A language model, trained by gradients on the tokens of a text (`training.gradient`). Here without reservoirs.

    A kind adds `kind: Literal["..."]` and its own fields.
    """

    trained = "by gradients"
    reads_states_alone: ClassVar[bool] = False
    """Whether `readout` of the model reads the states of one reservoir, and nothing else."""

    needs_reservoir = False
    named = "{kind}"

    @property
    def harvests(self) -> bool:
        """Whether nothing before the readout is trained, so that the states can be computed beforehand."""
        return False

    def tokens_of(self, task: Task) -> Tokens:
        """What of a task the model learns from. Raises `ConfigurationError` for a task without tokens."""
        if task.tokens is None:
            raise ConfigurationError(f"readout {self.kind} learns from the tokens of a text, and this task has none")
        return task.tokens

    def lessons(self, task: Task) -> dict[str, Corpus]:
        """What is learned, one after the other, by a name for each; by default the training part alone.

        Raises `ConfigurationError` for a task that does not have them.
        """
        return {"": self.tokens_of(task).tokens_train}

    def channels(self, task: Task) -> Channels:
        """`driven_with` for the vocabulary of the task."""
        return self.driven_with(self.tokens_of(task).vocabulary)

    def driven_with(self, vocabulary: int) -> Channels:
        """What a reservoir is driven with; without one, nothing."""
        return Channels(0)

    def build(
        self,
        vocabulary: int,
        reservoirs: Sequence[Reservoir] = (),
        twins: Sequence[Reservoir] = (),
        *,
        context: int = 0,
    ) -> TokenModel:
        """The model, untrained, around these open reservoirs: one for all layers, or one for each.

        Weights depend on `seed` alone. `context` are the tokens of a window, for a model that does not see all that
        came before. Raises `MissingExtra` without torch.
        """
        torch = import_torch("a language model", "train")
        layers = self._layers(reservoirs, twins)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._make(vocabulary, layers, context)

    def _layers(self, reservoirs: Sequence[Reservoir], twins: Sequence[Reservoir]) -> list[ReservoirLayer]:
        return []

    @abstractmethod
    def _make(self, vocabulary: int, layers: Sequence[ReservoirLayer], context: int, /) -> TokenModel:
        """The model around these layers, `layers_of_reservoirs` of them."""


class EsnLmConfig(TokenModelConfig):
    """An echo state language model of Ueda et al. 2025, whose frozen recurrence is part of it: W_in is looked up."""

    kind: Literal["esn_lm"]

    nodes: PositiveInt
    weights: Literal["sparse", "dense"] = Field(
        default="sparse", description="of Syntactic Learnability (tanh, low rank), or of the frozen recurrence (ReLU)"
    )
    connections: PositiveInt | None = Field(default=None, description="sparse: links of a column (32)")
    sparsity: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="dense: share of zeros in W (0.5)"
    )
    spectral_radius: PositiveFloat | None = Field(default=None, description="sparse 0.99, dense 0.993")
    input_scaling: PositiveFloat = 1.0
    leak: float | tuple[float, float] | None = Field(default=None, description="sparse (0, 1), dense 0.8")
    rank: PositiveInt | None = Field(default=None, description="sparse: of the readout (512)")
    train_input: bool = Field(default=False, description="dense: train W_in, too (ESN+i)")
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = Field(default=None, description="dense: in training (0.1)")

    @model_validator(mode="after")
    def _of_its_weights(self) -> Self:
        foreign = {"sparse": ("sparsity", "dropout"), "dense": ("connections", "rank")}[self.weights]
        given = [name for name in foreign if getattr(self, name) is not None]
        given += ["train_input"] if self.train_input and self.weights == "sparse" else []
        if given:
            raise ValueError(f"{', '.join(given)}: not for {self.weights} weights")
        return self

    @property
    def label(self) -> str:
        """ESN(nodes), or ESN+i(nodes) where W_in is trained."""
        return f"ESN{'+i' if self.train_input else ''}({self.nodes})"

    def _make(self, vocabulary: int, _layers: Sequence[ReservoirLayer], _context: int, /) -> TokenModel:
        from reservoir_hw.readout.models.esn_language_model import dense_esn_lm, sparse_esn_lm

        own = {"connections", "sparsity", "spectral_radius", "input_scaling", "leak", "rank", "dropout"}
        given = self.model_dump(include=own, exclude_none=True)
        if self.weights == "sparse":
            return sparse_esn_lm(self.nodes, vocabulary, seed=self.seed, **given)
        return dense_esn_lm(self.nodes, vocabulary, train_input=self.train_input, seed=self.seed, **given)


class ModelConfig(AroundReservoir, TokenModelConfig):
    """A language model around reservoirs."""

    needs_reservoir = True

    def reservoirs(self, reservoir: ReservoirConfig, channels: Channels) -> list[ReservoirConfig]:
        """The reservoirs to open: one that all layers share, or one for each.

        Raises `ConfigurationError` where the section `reservoir` does not fit.
        """
        configs = reservoir.for_layers(channels.count, self.layers_of_reservoirs)
        if self.twin is not None and len(configs) > 1:
            raise ConfigurationError("a twin stands for one device, and there is a reservoir for each layer")
        return [self.passed(config).for_inputs(channels) for config in configs]

    def _layers(self, reservoirs: Sequence[Reservoir], twins: Sequence[Reservoir]) -> list[ReservoirLayer]:
        if len(reservoirs) == 1:
            reservoirs = list(reservoirs) * self.layers_of_reservoirs
        return [self.layer(reservoir, *twins) for reservoir in reservoirs]


class OneHotConfig(Config):
    """A channel for each token."""

    kind: Literal["one_hot"]
    trainable: Literal[False] = False

    def channels(self, vocabulary: int) -> Channels:
        """As many channels as there are tokens, 0 or 1. Raises `ConfigurationError` where they are too many."""
        if vocabulary > _MOST_CHANNELS:
            raise ConfigurationError(
                f"embedding one_hot would drive the reservoir with {vocabulary:,} channels, of which "
                f"{_MOST_CHANNELS:,} are allowed: take embedding random, or readout kind esn_lm, which looks W_in up"
            )
        return Channels(vocabulary, (0.0, 1.0), one_hot=True)

    def build(self, vocabulary: int) -> nn.Module:
        """The module."""
        from reservoir_hw.readout.models.token_model import OneHot

        return OneHot(vocabulary)


class RandomEmbeddingConfig(Config):
    """A vector of random numbers for each token."""

    kind: Literal["random"]
    width: PositiveInt = 16
    scaling: PositiveFloat = Field(default=1.0, description="standard deviation of the numbers")
    seed: NonNegativeInt = 0
    trainable: bool = Field(default=False, description="needs reservoir_gradient: through or twin")

    def channels(self, vocabulary: int) -> Channels:
        """Normal vectors, of which one in a million is longer than this; how long trained ones get, nobody knows."""
        length = None if self.trainable else self.scaling * (math.sqrt(self.width) + 5.0)
        return Channels(self.width, length=length)

    def build(self, vocabulary: int) -> nn.Module:
        """The module."""
        from reservoir_hw.readout.models.token_model import random_embedding

        return random_embedding(vocabulary, self.width, seed=self.seed, scaling=self.scaling, trainable=self.trainable)


class ReservoirModelConfig(ModelConfig):
    """Tokens -> embedding -> reservoir -> readout."""

    embedding: Annotated[OneHotConfig | RandomEmbeddingConfig, Field(discriminator="kind")] = Field(
        default=RandomEmbeddingConfig(kind="random"), description="what each token drives the reservoir with"
    )
    state_norm: Literal["layer"] | None = Field(
        default=None, description="layer: the states of each step get mean 0 and variance 1, scaled and shifted"
    )

    reads_states_alone = True

    @property
    def harvests(self) -> bool:
        """Where the embedding is frozen."""
        return not self.embedding.trainable

    def driven_with(self, vocabulary: int) -> Channels:
        """The vectors of the embedding."""
        return self.input_map.applied_to(self.embedding.channels(vocabulary))

    @abstractmethod
    def _readout(self, nodes: int, vocabulary: int) -> nn.Module: ...

    def _make(self, vocabulary: int, layers: Sequence[ReservoirLayer], _context: int, /) -> TokenModel:
        from reservoir_hw.readout.models.softmax import NormalisedReadout
        from reservoir_hw.readout.models.token_model import ReservoirLM

        (layer,) = layers
        readout = self._readout(layer.nodes, vocabulary)
        if self.state_norm is not None:
            readout = NormalisedReadout(layer.nodes, vocabulary, readout)
        return ReservoirLM(self.embedding.build(vocabulary), layer, readout)

    @model_validator(mode="after")
    def _gradient_reaches_the_embedding(self) -> Self:
        if self.embedding.trainable and self.reservoir_gradient == "stop":
            raise ValueError("a trainable embedding needs a gradient: set reservoir_gradient to through or twin")
        return self


class LinearModelConfig(ReservoirModelConfig):
    """Linear softmax readout of a reservoir: the classic reservoir computer (Köster & Uchida 2026, eq. 2)."""

    kind: Literal["linear"]
    bias: bool = True

    def _readout(self, nodes: int, vocabulary: int) -> nn.Module:
        from reservoir_hw.readout.models.softmax import LinearReadout

        return LinearReadout(nodes, vocabulary, self.bias)


class LowRankModelConfig(ReservoirModelConfig):
    """Low-rank softmax readout of a reservoir, for large vocabularies (Ueda et al. 2025, section 2.1)."""

    kind: Literal["low_rank"]
    named = "low_rank({rank})"
    rank: PositiveInt = 16
    bias: bool = True

    def _readout(self, nodes: int, vocabulary: int) -> nn.Module:
        from reservoir_hw.readout.models.softmax import LowRankReadout

        return LowRankReadout(nodes, vocabulary, self.rank, self.bias)


class AttentionModelConfig(ReservoirModelConfig):
    """Attention readout of a reservoir, the AERC (Köster & Uchida 2026, eq. 3-5)."""

    kind: Literal["attention"]
    named = "attention({hidden})"
    hidden: PositiveInt = Field(default=25, description="width of the network that computes the output weights")

    def _readout(self, nodes: int, vocabulary: int) -> nn.Module:
        from reservoir_hw.readout.models.softmax import AttentionReadout

        return AttentionReadout(nodes, self.hidden, vocabulary)


class LaercConfig(ModelConfig):
    """Layers of a reservoir, a gate and a network, trained as a whole (Köster & Uchida 2026, eq. A1-A19)."""

    kind: Literal["laerc"]
    named = "laerc({layers}×{width})"
    width: PositiveInt = Field(description="of the vectors that pass through the layers, and drive the reservoirs")
    layers: PositiveInt = Field(description="they share the reservoir, unless its kind is one for each layer")
    alpha_res: PositiveFloat = Field(default=1.0, description="hidden units behind a reservoir, for each of its nodes")
    reservoir_hidden: PositiveInt | None = Field(default=None, description="their number, in place of alpha_res")
    gate_hidden: PositiveInt | None = Field(default=None, description="hidden units of the gate; null: one layer")
    ffn_hidden: PositiveInt | None = Field(default=None, description="null: four times the width")
    input_affine: Literal["none", "frozen", "trained"] | None = Field(
        default=None, description="scale and shift before the reservoir; null: trained if a gradient passes it"
    )

    @property
    def layers_of_reservoirs(self) -> int:
        """`layers`."""
        return self.layers

    def driven_with(self, vocabulary: int) -> Channels:
        """Vectors that were normalised: in d dimensions they measure √d, unless a scale is trained."""
        untrained = self.reservoir_gradient == "stop" and self.input_affine in (None, "none")
        length = math.sqrt(self.width) if untrained else None
        return self.input_map.applied_to(Channels(self.width, length=length))

    def _make(self, vocabulary: int, layers: Sequence[ReservoirLayer], _context: int, /) -> TokenModel:
        from reservoir_hw.readout.models.laerc import LAERC

        own = ("alpha_res", "reservoir_hidden", "gate_hidden", "ffn_hidden", "input_affine")
        return LAERC(vocabulary, self.width, layers, **self.model_dump(include=set(own)))
