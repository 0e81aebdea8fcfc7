"""A site's own window, for its operator alone: never by way of the coordinator."""

from datetime import datetime
from typing import Literal

from app.schemas.shape import Answer


class WindowData(Answer):
    """A site's patches in numbers, none of them withheld."""

    site: str
    style: str  # in which patches are read for training
    train: dict[str, int]  # patches by class
    test: dict[str, int]
    vendors: dict[str, int]  # training patches by vendor; none where the data do not say
    styles: dict[str, int]  # training patches by the style in which they were cut or drawn
    histogram: tuple[float, ...]  # share of pixels by grey level in 32 bins of [0, 1], as trained on
    histogram_before: tuple[float, ...] | None  # the same before the site's style


class RefusedItem(Answer):
    """A file or a row that cannot be used, and why."""

    name: str
    error: str
    reason: str


class Preflight(Answer):
    """The report of `mammofed inspect`, made when the site joined; values of patient tags are nowhere in it."""

    made_at: datetime
    exit_code: Literal[0, 1, 2]  # fine, usable with warnings, cannot train
    verdict: str
    files: int
    usable: int
    unit: str  # what is counted: files, or patches
    counts: dict[str, dict[str, int]]  # by table: class, split, vendor, view, laterality, ...
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    identity: dict[str, int]
    unreadable: tuple[RefusedItem, ...]
    refused_rows: tuple[RefusedItem, ...]
    duplicates: tuple[tuple[str, ...], ...]  # names of files with the same pixels
    wrong_side: tuple[str, ...]
    notice: str
