"""Tasks as an experiment file names them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

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
        from reservoir_hw.tasks.elman_grammar import ElmanGrammar

        return ElmanGrammar(**self.model_dump(exclude={"kind"}))


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
        from reservoir_hw.tasks.narma import Narma

        return Narma(**self.model_dump(exclude={"kind"}))


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
        from reservoir_hw.tasks.channel_equalisation import ChannelEqualisation

        return ChannelEqualisation(**self.model_dump(exclude={"kind"}))
