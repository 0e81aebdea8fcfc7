"""docs/coordinator.md names every endpoint, and its lines run as they stand."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.schemas.access import NewToken
from tests.app.coordinator.services import SMALL, Service, running_coordinator, trained

pytestmark = pytest.mark.xdist_group("page")
PAGE = Path(__file__).parents[2] / "docs" / "coordinator.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
FIRST, *EXAMPLES = [[line for line in block.splitlines() if not line.startswith("#")] for block in BLOCKS]
LINES = [line for block in EXAMPLES for line in block]
CALL = re.compile(r"(?:-X (\w+) .*?)?\$URL(/[^\s?\"]*)")
ACTION = re.compile(r"/runs/\$RUN/(start|pause|resume|step|stop)$")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_coordinator(tmp_path_factory.mktemp("page") / "mammofed-home") as running:
        yield running


@pytest.fixture(scope="module")
def known(service: Service) -> dict[str, str]:
    """A trained run, a draft, a one-time token and a token to revoke."""
    with service.client() as lead:
        return {
            "RUN": trained(lead, SMALL).id,
            "DRAFT": lead.create(SMALL).id,
            "ONE_TIME": lead.enrol("hospital-8").token,
            "TOKEN_ID": lead.create_token(NewToken(name="short", role="viewer")).token.id,
        }


def offered(service: Service) -> set[tuple[str, str]]:
    """Method and path of all that the service offers, with `*` for what varies."""
    paths = httpx.get(f"{service.url}/api/v1/openapi.json", trust_env=False).json()["paths"]
    return {(method.upper(), re.sub(r"{\w+}", "*", path)) for path, all_of in paths.items() for method in all_of}


def call_of(line: str) -> tuple[str, str]:
    """Method and path that a line of the page asks for."""
    found = CALL.search(line)
    assert found, f"no address in {line!r}"
    return found[1] or "GET", found[2]


def fits(call: tuple[str, str], offer: tuple[str, str]) -> bool:
    """Whether the call is one of the offer."""
    return call[0] == offer[0] and re.fullmatch(offer[1].replace("*", "[^/]+"), call[1]) is not None


def test_every_endpoint_has_its_line(service: Service) -> None:
    calls = [call_of(line) for line in LINES]
    assert [offer for offer in offered(service) if not any(fits(call, offer) for call in calls)] == []


def test_every_line_runs_as_it_stands(service: Service, known: dict[str, str]) -> None:
    offers = [*offered(service), ("GET", "/api/v1/openapi.json")]
    for line in LINES:
        if not any(fits(call_of(line), offer) for offer in offers):
            continue
        on_draft = ACTION.search(line) is not None
        names = {**known, "RUN": known["DRAFT"]} if on_draft else known
        given = "".join(f"{name}='{value}'\n" for name, value in names.items())
        before = "\n".join(FIRST).replace("http://127.0.0.1:8400", service.url)
        done = subprocess.run(
            ["bash", "-c", f"{before}\n{given}{line}"],
            cwd=service.home.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        refused = on_draft and '"status":409' in done.stdout
        assert done.returncode == 0 or refused, f"{line}\n{done.stdout}{done.stderr}"
