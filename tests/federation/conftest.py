"""Three sites in this process, for all tests that lie, die or are slow there."""

from pathlib import Path

import pytest

from app.sources import sites_from
from fl_core.data import SiteData
from tests.federation.neighbours import CHOICE, SITES, Neighbours


@pytest.fixture(scope="module")
def data() -> tuple[SiteData, ...]:
    return sites_from(CHOICE)


@pytest.fixture
def neighbours(tmp_path: Path) -> Neighbours:
    words = "synthetic:{}/3,patches=30,size=32"
    return Neighbours(tmp_path, {site: words.format(number) for number, site in enumerate(SITES, 1)})
