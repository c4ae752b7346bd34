"""How a model is trained: everything that decides about the weights, and how often something is written."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from reservoir_hw.core.configuration import Config, Document, explained
from reservoir_hw.core.errors import ConfigurationError

Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]

DECIDE_ORDER = ("windows", "batch", "accumulate", "context", "stride", "predict", "shard_epochs", "seed")
"""The options that decide which data a step sees: they must not change within a training."""


class TrainingOptions(Config):
    """Settings of `train`.

    A step is one update of the weights. It sees `batch` × `accumulate` windows, however many processes share
    them; a window is `context` tokens and as many targets, the tokens one further on.

    The learning rate of step s = 0, 1, ... of S is, with w = `warmup` · S and h = `hold` · S rounded to whole steps,

        learning_rate · (s + 1) / w                                            s < w
        learning_rate                                                          w ≤ s < w + h
        learning_rate · (f + (1 - f) (1 + cos(π (s - w - h) / (S - w - h))) / 2)       from there on, f = final_rate

    so that by default it is constant.
    """

    steps: PositiveInt | None = Field(default=None, description="how long; or give epochs")
    epochs: PositiveInt | None = Field(
        default=None, description="how long, in passes over the windows; the last step is filled up from a further one"
    )
    windows: Literal["random", "consecutive"] = Field(
        default="consecutive",
        description="random: each begins at any token (Köster & Uchida 2026, eq. A20); "
        "consecutive: side by side, each once in an epoch, shuffled",
    )
    context: PositiveInt = Field(default=256, description="tokens in a window")
    stride: PositiveInt | None = Field(
        default=None, description="tokens from one consecutive window to the next; null: context"
    )
    predict: Literal["every", "last"] = Field(default="every", description="last: only the last target counts")
    batch: PositiveInt = Field(default=32, description="windows that the model sees at once")
    accumulate: PositiveInt = Field(default=1, description="batches whose gradients make one step")
    shard_epochs: PositiveInt = Field(
        default=5, description="precomputed states: epochs on one shard before the next (Köster & Uchida 2026, III.A)"
    )
    precision: Literal["fp32", "bf16-mixed"] = "fp32"
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    learning_rate: PositiveFloat = 1e-3
    embedding_rate: PositiveFloat = Field(default=1.0, description="factor on the learning rate of embeddings")
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: NonNegativeFloat = Field(default=0.01, description="of AdamW; 0 makes it Adam")
    decay: Literal["linear", "all"] = Field(
        default="linear",
        description="linear: none for biases, norms, scalars and embeddings (Köster & Uchida 2026, A.3)",
    )
    warmup: Fraction = Field(default=0.0, description="part of the steps in which the learning rate rises from 0")
    hold: Fraction = Field(default=0.0, description="part of the steps in which it then stays")
    final_rate: Fraction = Field(default=1.0, description="factor on the learning rate at the end of the cosine")
    clip: PositiveFloat | None = Field(default=None, description="largest norm of the gradient")
    patience: PositiveInt | None = Field(
        default=None, description="stop after this many evaluations without a better validation loss"
    )
    keep: Literal["last", "best"] = Field(default="last", description="which weights the model has in the end")
    seed: NonNegativeInt = 0
    evaluation_steps: PositiveInt | None = Field(
        default=None, description="steps between evaluations; null: one, after the last step"
    )
    evaluation_windows: PositiveInt | None = Field(
        default=None, description="windows of the validation corpus that are evaluated, from its start; null: all"
    )
    checkpoint_steps: PositiveInt = 500
    log_steps: PositiveInt = 10

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise explained(error, type(self), Document(settings, {(): type(self).__name__})) from None

    # As a section of a file they are read without it, and the file's messages name the line.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs: how long shall the training be?")
        if self.warmup + self.hold > 1:
            raise ValueError(f"warmup {self.warmup} and hold {self.hold} are together more than the whole training")
        if self.stride is not None and self.windows == "random":
            raise ValueError("stride belongs to consecutive windows; random ones begin anywhere")
        if self.patience is not None and self.evaluation_steps is None:
            raise ValueError("patience counts evaluations: set evaluation_steps")
        return self

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """The settings of a paper (`PRESETS`), with changes; steps or epochs must be among them where it has none."""
        if name not in PRESETS:
            raise ConfigurationError(f"there is no preset {name!r}; there are: {', '.join(PRESETS)}")
        settings = {**PRESETS[name], **changes}
        if changes.get("steps") is not None and "epochs" not in changes:
            settings.pop("epochs", None)
        return cls(**settings)

    @property
    def windows_per_step(self) -> int:
        """Windows that one update of the weights sees, over all processes."""
        return self.batch * self.accumulate

    def steps_for(self, windows: int) -> int:
        """Steps of the whole training on a corpus with this many consecutive windows."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return math.ceil(self.epochs * windows / self.windows_per_step)

    def out_of_patience(self, worse: int) -> bool:
        """Whether so many evaluations without a better loss end the training."""
        return self.patience is not None and worse >= self.patience

    def check_documents(self, lengths: np.ndarray, name: str) -> None:
        """Raise `ConfigurationError` where documents with so many tokens, or options for windows, do not fit."""
        if not len(lengths):
            raise ConfigurationError(f"{name} has no documents")
        shortest, longest = int(lengths.min()), int(lengths.max())
        if shortest < 2:
            raise ConfigurationError(f"{name} has a document of {shortest} tokens: a prediction needs two")
        if longest > self.context + 1:
            raise ConfigurationError(
                f"{name} has a document of {longest} tokens; with context {self.context} they have at most "
                f"{self.context + 1}: leave longer ones out, or set context to {longest - 1}"
            )
        for option, plain in (("windows", "consecutive"), ("stride", None), ("predict", "every")):
            value = getattr(self, option)
            if value != plain:
                raise ConfigurationError(f"{option} is {value}, but documents are read whole: it is for windows")

    def rate_factor(self, step: int, steps: int) -> float:
        """The learning rate in `step` (from 0) of `steps`, as a factor on `learning_rate`."""
        warm, held = round(self.warmup * steps), round(self.hold * steps)
        if step < warm:
            return (step + 1) / warm
        if step < warm + held:
            return 1.0
        progress = (step - warm - held) / (steps - warm - held)
        return self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * progress)) / 2


PRESETS: dict[str, dict[str, Any]] = {
    # Köster & Uchida 2026, sections II.E-F and III.A: RC, AERC and the character transformer. Adam, 32 characters and
    # the one that follows, 5 epochs on each shard. The number of passes over the shards is not given.
    "aerc": {
        "context": 32,
        "stride": 1,
        "predict": "last",
        "batch": 1024,
        "learning_rate": 1e-4,
        "weight_decay": 0.0,
        "shard_epochs": 5,
        "precision": "bf16-mixed",
    },
    # The same, appendix A.2-A.3: LAERC. Chunks of T = 512 tokens make 511 pairs (eq. A20). The paper is silent about
    # the learning rate and its schedule, clipping and the rate of the embedding; these are the defaults of the
    # authors' published code (github.com/fekoester/LAERC, laerc/config.py and build_optimizer).
    "laerc": {
        "windows": "random",
        "context": 511,
        "batch": 32,
        "accumulate": 4,
        "betas": (0.9, 0.999),
        "weight_decay": 0.1,
        "decay": "linear",
        "precision": "bf16-mixed",
        "learning_rate": 4e-4,
        "embedding_rate": 0.2,
        "warmup": 0.01,
        "hold": 0.1,
        "final_rate": 0.1,
        "clip": 1.0,
    },
    # Ueda et al. 2025, section 4.1: one epoch, batches of 32, AdamW as torch has it. Their sequences are sentences
    # of at most 512 tokens, these are windows of 512.
    "esn": {
        "epochs": 1,
        "context": 512,
        "batch": 32,
        "learning_rate": 1e-3,
        "betas": (0.9, 0.999),
        "weight_decay": 0.01,
        "decay": "all",
    },
}
# The Japanese paper on ESN+i (section 3) names the same settings; its dropout belongs to the model.
PRESETS["esn+i"] = PRESETS["esn"]
