"""What all shapes of the REST interface share: answers, requests, pages, problems, and the words of its fields."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")
RunState = Literal["draft", "running", "paused", "completed", "stopped", "failed"]
Action = Literal["start", "pause", "resume", "step", "stop"]
EngineName = Literal["local", "nvflare"]
Role = Literal["coordinator", "site", "viewer"]
SiteCondition = Literal["active", "paused", "withdrawn"]
MetricName = Literal["accuracy", "auc_ovo", "auc_ovr"]
Which = Literal["best", "last"]
ModelFormat = Literal["safetensors", "onnx", "monai-bundle"]
SITE_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"
SiteName = Annotated[str, Field(pattern=SITE_NAME, examples=["hospital-1"])]
Seconds = Annotated[float, Field(gt=0, le=1e7)]


class Answer(BaseModel):
    """What the coordinator says; fields are fixed once said."""

    model_config = ConfigDict(frozen=True)


class Request(BaseModel):
    """What a caller asks; unknown fields are refused rather than ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Page(Answer, Generic[Item]):
    """A part of a list; `next` is the value of `after` for the part behind it."""

    items: tuple[Item, ...]
    total: int
    next: int | str | None


class Problem(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Conflict",
                    "status": 409,
                    "detail": "a draft run cannot pause; allowed now: start, step, stop",
                    "instance": "/api/v1/runs/0007-1c2d3e4f/pause",
                    "allowed": ["start", "step", "stop"],
                }
            ]
        }
    )

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str | None = None
    allowed: tuple[str, ...] | None = None  # 409: the actions that are allowed now
    errors: list[dict[str, Any]] | None = None  # 422: what is wrong, field by field
