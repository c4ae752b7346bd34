"""Tasks as an experiment file names them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

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
