"""What a site answers, as it came → checked words and scores, or SiteRefused: nothing a site says goes further
unchecked, and nothing it says ends the run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic_core
import safetensors
import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fl_core.evaluate import Scored
from fl_core.metrics import checked
from mammofed.errors import BadData, TrainingFailed

MOST_WORDS = 1 << 20  # bytes of an answer in words
NUL = b"\\u0000"  # what no database keeps in a text
MOST_SCORED = 1 << 20  # test patches whose scores a site may send
SHOWN = 300  # characters of a site's own words that people are shown

Answer = dict[str, Any]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=10**12)]
Share = Annotated[float, Field(ge=0, le=1)]


class SiteRefused(TrainingFailed):
    """A site answered that it does not, or cannot, or what nobody can use."""


class SiteLate(SiteRefused):
    """A site answers, but its round is not done at the deadline."""


class Words(BaseModel):
    """Any answer; what is not asked for is dropped."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class Hello(Words):
    """Who a site is, and how much data it trains on."""

    site: str
    paused: bool
    patches: Count = Field(ge=1)
    classes: list[Annotated[str, Field(max_length=100)]] = Field(min_length=2, max_length=1000)
    style: str = Field(max_length=100)
    shape: list[Annotated[int, Field(ge=1, le=1 << 16)]] = Field(min_length=3, max_length=3)  # (channels, H, W)
    train: list[Count]
    test: list[Count]
    vendors: dict[Annotated[str, Field(max_length=64)], Count] = Field(max_length=100)  # PS3.5 6.2: LO
    data: str = Field(max_length=100)

    @model_validator(mode="after")
    def counts_every_class_once(self) -> "Hello":
        """One count a class, and no class twice."""
        if not len(set(self.classes)) == len(self.classes) == len(self.train) == len(self.test):
            raise ValueError("its classes and its counts do not match")
        return self


class Progress(Words):
    """How far an order is."""

    state: Literal["working", "failed", "done", "unknown"]
    steps: Count = 0
    of: Count = 0
    error: str | None = None


class Spooled(Words):
    """Bytes that wait at the site."""

    digest: Digest
    bytes: int


class Trained(Progress):
    """The same of a round's training, with its update once it is done."""

    digest: Digest | None = None
    bytes: int | None = None

    @model_validator(mode="after")
    def brings_its_update(self) -> "Trained":
        """Whoever is done has something to fetch."""
        if self.state == "done" and (self.digest is None or self.bytes is None):
            raise ValueError("it is done, and announces no update")
        return self


class Interval(Words):
    """A metric, where it is defined."""

    value: Share | None
    low: Share | None
    high: Share | None


class Dispersed(Words):
    """Of a meeting that is broken up: who was waiting there for others."""

    waiting: list[str]


class Metrics(Words):
    """A site's own metrics."""

    accuracy: Interval
    auc_ovo: Interval
    auc_ovr: Interval


class Evaluated(Progress):
    """The same of scoring, with metrics once it is done."""

    metrics: Metrics | None = None
    n: Count | None = None
    scores: Spooled | None = None

    @model_validator(mode="after")
    def brings_its_metrics(self) -> "Evaluated":
        """Whoever is done has metrics."""
        if self.state == "done" and (self.metrics is None or self.n is None):
            raise ValueError("it is done, and has no metrics")
        return self


def read_words(kind: type[Words], order: str, answer: bytes) -> Answer:
    """A site's words; its own refusal, or what is not as agreed, is SiteRefused."""
    try:
        found = pydantic_core.from_json(answer) if len(answer) <= MOST_WORDS else None
        if NUL in answer:
            raise SiteRefused(f"its answer to {order!r} is not as agreed: it holds a character that is none")
        if isinstance(found, dict) and found.get("error") and "state" not in found:
            raise SiteRefused(str(found["error"])[:SHOWN])
        if not isinstance(found, dict):
            raise SiteRefused(f"its answer to {order!r} is not as agreed: {len(answer)} bytes that are no words")
        return kind.model_validate_json(answer).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SiteRefused(f"its answer to {order!r} is not as agreed: {where} {first['msg']}"[:SHOWN]) from error
    except ValueError as error:
        raise SiteRefused(f"its answer to {order!r} is not as agreed: {error}"[:SHOWN]) from error


@dataclass(frozen=True)
class Form:
    """What all sites of a run share, since the model has it: classes and channels of the patches."""

    classes: tuple[str, ...]
    channels: int

    @staticmethod
    def of(hello: Mapping[str, Any]) -> "Form":
        """From a site's own words."""
        return Form(tuple(hello["classes"]), hello["shape"][0])

    @staticmethod
    def usual(hellos: Iterable[Mapping[str, Any]]) -> "Form | None":
        """The one that most sites have, or the first of those that equally many have: one liar changes nothing."""
        most = Counter(Form.of(hello) for hello in hellos).most_common(1)
        return most[0][0] if most else None


def most_scores(form: Form) -> int:
    """Bytes that a site's scores and labels can have at most."""
    return 4096 + MOST_SCORED * (len(form.classes) + 1) * 8


def read_scores(path: Path, form: Form) -> Scored:
    """Scores and labels as a site wrote them: probabilities of the model's classes, or SiteRefused."""
    try:
        tensors = safetensors.torch.load_file(path)
        scores, labels = checked(tensors["scores"].numpy(), tensors["labels"].numpy())
    except (safetensors.SafetensorError, KeyError, TypeError, BadData) as error:
        raise SiteRefused(f"its scores are not as agreed: {error}"[:SHOWN]) from error
    if scores.shape[1] != len(form.classes):
        raise SiteRefused(f"its scores have {scores.shape[1]} classes, the model has {len(form.classes)}")
    return Scored(scores, labels)
