"""Tasks as an experiment file names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.configuration import Config
from reservoir_hw.tasks.task import Task, TaskConfig


class ElmanGrammarConfig(TaskConfig):
    """Next-word prediction in Elman's grammar (Tong et al. 2007), or in a corpus of your own."""

    kind: Literal["elman_grammar"]
    dataset: Annotated[int, Field(ge=0, le=4)] = Field(default=0, description="which of the five sets")
    seed: NonNegativeInt = 2007
    sentences: Annotated[int, Field(ge=20)] = Field(default=10_000, description="of which every tenth is for the test")
    complex_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.75, description="share of sentences with a relative clause"
    )
    corpus: str | None = Field(
        default=None, description="a text file with one sentence per line instead of generated sentences"
    )

    def build(self) -> Task:
        """An `ElmanGrammar` with these settings."""
        from reservoir_hw.tasks.elman_grammar.task import ElmanGrammar

        return ElmanGrammar(**_fields(self))


class NarmaConfig(TaskConfig):
    """Emulate the nonlinear system NARMA10 (Atiya & Parlos 2000), or one of another order."""

    kind: Literal["narma"]
    order: Annotated[int, Field(ge=3, le=20)] = Field(default=10, description="steps of memory")
    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0
    washout_steps: NonNegativeInt = Field(
        default=100, description="steps from rest that belong to no split; a reservoir's own are `readout.washout`"
    )
    train_steps: PositiveInt = 2000
    test_steps: Annotated[int, Field(ge=2)] = 2000

    def build(self) -> Task:
        """A `Narma` with these settings."""
        from reservoir_hw.tasks.narma.task import Narma

        return Narma(**_fields(self))


class ChannelEqualisationConfig(TaskConfig):
    """Recover the symbols sent through a nonlinear radio channel (Jaeger & Haas 2004)."""

    kind: Literal["channel_equalisation"]
    snr_db: Annotated[float, Field(ge=-100, le=300)] = Field(default=32.0, description="signal-to-noise ratio")
    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0
    target_delay: NonNegativeInt = Field(
        default=2, description="steps by which the wanted symbol d(n - delay) lies behind the input u(n)"
    )
    train_steps: PositiveInt = 3000
    test_steps: Annotated[int, Field(ge=100)] = 100_000

    def build(self) -> Task:
        """A `ChannelEqualisation` with these settings."""
        from reservoir_hw.tasks.channel_equalisation.task import ChannelEqualisation

        return ChannelEqualisation(**_fields(self))


class ClosedLoop(Config):
    """The reservoir goes on alone, fed with the readout's answers: from where, how long, and judged how.

    Pieces of `warmup_steps` and `forecast_steps` follow the training data one after the other.
    """

    starts: PositiveInt = Field(default=20, description="forecasts, each on a piece of the series of its own")
    warmup_steps: PositiveInt = Field(default=200, description="true steps driven before each start")
    forecast_steps: Annotated[int, Field(ge=2)] = Field(default=1000, description="steps that the reservoir goes alone")
    threshold: PositiveFloat = Field(
        default=0.4, description="error, in standard deviations of the series, up to which a forecast is valid"
    )


class _PredictionConfig(TaskConfig):
    ahead_steps: PositiveInt = Field(default=1, description="the target is u(t + ahead_steps)")
    train_steps: Annotated[int, Field(ge=2)] = 3000
    test_steps: Annotated[int, Field(ge=2)] = Field(default=2000, description="in an open loop")


class _IntegratedConfig(_PredictionConfig):
    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0
    closed_loop: ClosedLoop | None = Field(
        default=None, description="forecast from the readout's own answers; {} takes the defaults"
    )

    @model_validator(mode="after")
    def _one_step_in_a_closed_loop(self) -> Self:
        if self.closed_loop is not None and self.ahead_steps != 1:
            raise ValueError("in a closed loop every answer is the next input, so ahead_steps must be 1")
        return self


class LorenzConfig(_IntegratedConfig):
    """Say how the Lorenz system goes on, some steps ahead or in a closed loop."""

    kind: Literal["lorenz"]
    time_step: PositiveFloat = Field(default=0.02, description="units of time from one step to the next")
    sigma: PositiveFloat = 10.0
    rho: PositiveFloat = 28.0
    beta: PositiveFloat = 8 / 3
    train_steps: Annotated[int, Field(ge=2)] = 5000

    def build(self) -> Task:
        """A `Lorenz` with these settings."""
        from reservoir_hw.tasks.lorenz import Lorenz

        return Lorenz(**_fields(self))


class MackeyGlassConfig(_IntegratedConfig):
    """Say how the Mackey–Glass system goes on, some steps ahead or in a closed loop."""

    kind: Literal["mackey_glass"]
    tau: PositiveFloat = Field(default=17.0, description="delay; chaotic from about 16.8 on")
    beta: PositiveFloat = 0.2
    gamma: PositiveFloat = 0.1
    power: PositiveFloat = 10.0
    time_step: PositiveFloat = Field(default=1.0, description="units of time from one step to the next")
    scaling: Literal["standardise", "squash", "none"] = Field(
        default="standardise", description="squash: tanh(x - 1), as Jaeger & Haas 2004"
    )

    def build(self) -> Task:
        """A `MackeyGlass` with these settings."""
        from reservoir_hw.tasks.mackey_glass import MackeyGlass

        return MackeyGlass(**_fields(self))


class SantaFeConfig(_PredictionConfig):
    """Say what the intensity of a chaotic laser will be (Santa Fe competition, data set A)."""

    kind: Literal["santa_fe"]
    first_step: NonNegativeInt = Field(default=0, description="of the 10,093 steps of the series")
    test_steps: Annotated[int, Field(ge=2)] = 1000

    def build(self) -> Task:
        """A `SantaFe` with these settings."""
        from reservoir_hw.tasks.santa_fe import SantaFe

        return SantaFe(**_fields(self))


class MemoryRecallConfig(TaskConfig):
    """Give back the inputs of earlier steps."""

    kind: Literal["memory_recall"]
    delays: Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
        default=list(range(21)), description="the steps back that are asked for, one output for each"
    )
    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0
    train_steps: PositiveInt = 4000
    test_steps: Annotated[int, Field(ge=3)] = 4000

    def build(self) -> Task:
        """A `MemoryRecall` with these settings."""
        from reservoir_hw.tasks.memory_recall.task import MemoryRecall

        return MemoryRecall(**_fields(self))


class ParityConfig(TaskConfig):
    """Say whether an odd number of the last bits is set; of two bits, their exclusive or."""

    kind: Literal["parity"]
    bits: PositiveInt = 2
    delay: NonNegativeInt = Field(default=0, description="steps from the last of the bits to the answer")
    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0
    train_steps: PositiveInt = 2000
    test_steps: Annotated[int, Field(ge=2)] = 5000

    def build(self) -> Task:
        """A `Parity` with these settings."""
        from reservoir_hw.tasks.parity.task import Parity

        return Parity(**_fields(self))


class SineSquareConfig(TaskConfig):
    """Say at every step whether the input is a sine or a square wave (Paquot et al. 2012)."""

    kind: Literal["sine_square"]
    period_steps: Annotated[int, Field(ge=4, multiple_of=2)] = 12
    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0
    train_periods: PositiveInt = 100
    test_periods: Annotated[int, Field(ge=8)] = 400

    def build(self) -> Task:
        """A `SineSquare` with these settings."""
        from reservoir_hw.tasks.sine_square.task import SineSquare

        return SineSquare(**_fields(self))


class JapaneseVowelsConfig(TaskConfig):
    """Say which of nine men is speaking (Kudo, Toyama & Shimbo 1999)."""

    kind: Literal["japanese_vowels"]

    def build(self) -> Task:
        """A `JapaneseVowels`."""
        from reservoir_hw.tasks.japanese_vowels.task import JapaneseVowels

        return JapaneseVowels()


class TextConfig(TaskConfig):
    """Say how a text goes on: characters, words or byte pairs."""

    kind: Literal["text"]
    corpus: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="path of a text (also .gz, .xz), or several; looked for in the folder of RESERVOIR_HW_DATA too"
    )
    level: Literal["char", "word", "bpe"] = Field(default="char", description="what a token is; bpe: GPT-2's")
    lower: bool = Field(default=False, description="turn the text to lower case")
    limit: PositiveInt | None = Field(default=None, description="characters that are read, from the start")
    most: PositiveInt | None = Field(default=None, description="level word: so many of the most frequent words")
    unknown: Literal["error", "token"] = Field(
        default="error", description="what the training part does not have: refuse it, or give it a token of its own"
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.05, description="share of the text")
    test: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.05, description="share of the text, its end")

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation:g} and test {self.test:g} leave nothing for training")
        if self.most is not None and self.level != "word":
            raise ValueError(f"most belongs to level word, not to {self.level}")
        if self.most is not None and self.unknown == "error":
            raise ValueError("most leaves words without a token: it needs unknown: token")
        return self

    def build(self) -> Task:
        """A `Text` with these settings."""
        from reservoir_hw.tasks.text.task import Text

        return Text(**_fields(self))


def _fields(config: TaskConfig) -> dict[str, Any]:
    return {name: value for name, value in config if name != "kind"}
