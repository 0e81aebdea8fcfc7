"""What there is to choose from and what it would cost: algorithms, models, presets, estimates; and health."""

from typing import Literal

from app.schemas.runs import RunSettings
from app.schemas.shape import Answer


class Estimate(Answer):
    """What a run will cost, before it starts."""

    traffic_bytes: int | None  # all sites, all rounds, both ways; null for pooled data
    traffic: str  # the formula, one site, one way, one round
    seconds: float | None  # null: no comparable run has trained here yet
    parameters: int


class AlgorithmRow(Answer):
    """A row of the table of algorithms."""

    name: str
    differs: str
    bn_policy: str
    explained: str  # in two sentences
    sends: str
    bytes: int  # one way, one site, one round of DenseNet-121
    private: bool  # each site has a model of its own


class ModelRow(Answer):
    """A network that can be trained."""

    name: str
    explained: str
    parameters: int
    bytes: int


class Preset(Answer):
    """Settings to begin with."""

    name: str
    explained: str
    settings: RunSettings


class Health(Answer):
    """Whether the service is up, and what it stands on."""

    status: Literal["ok", "failing"]
    version: str
    database: str
    workers: int
    problems: tuple[str, ...] = ()
