"""The OpenAPI description against the service: no 5xx, every answer in its schema, every kind of answer met."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.client import API
from app.schemas.access import Exchange, NewSite, NewToken
from app.schemas.runs import Event, Run, RunSettings
from app.schemas.shape import Page, Problem
from tests.app.coordinator.services import SMALL, Service, running_coordinator, trained

pytestmark = pytest.mark.xdist_group("contract")
CHECKS = "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance"
STREAM = f"{API}/runs/{{run}}/events"  # does not end where it is asked for as a stream
BY_LUCK = {
    f"POST {API}/runs/{{run}}/{{action}}",
    f"POST {API}/tokens/exchange",
}  # need a run or token made just now


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A coordinator of its own, since all of it is shaken."""
    with running_coordinator(tmp_path_factory.mktemp("contract") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def run(service: Service) -> Run:
    """A run to be found, trained to its end."""
    with service.client() as lead:
        lead.enrol("hospital-1")
        return trained(lead, SMALL)


@pytest.fixture(scope="module")
def description(service: Service) -> Mapping[str, Mapping[str, object]]:
    """The paths that the service describes."""
    paths: dict[str, dict[str, object]] = httpx.get(f"{service.url}{API}/openapi.json").json()["paths"]
    return paths


def test_every_body_is_described_with_examples_that_fit(service: Service) -> None:
    found = httpx.get(f"{service.url}{API}/openapi.json").json()
    operations = [operation for methods in found["paths"].values() for operation in methods.values()]
    bodies = [
        one["requestBody"]["content"]["application/json"]["schema"] for one in operations if "requestBody" in one
    ]
    names = {body["$ref"].rpartition("/")[2] for body in bodies}
    shapes = (RunSettings, NewSite, NewToken, Exchange)
    assert names == {shape.__name__ for shape in shapes}
    for shape in (*shapes, Problem):
        schema = found["components"]["schemas"][shape.__name__]
        fields = {field: how.get("examples", [None])[0] for field, how in schema["properties"].items()}
        for example in schema.get("examples", [fields]):
            shape.model_validate(example)


def known_names(service: Service, run: Run) -> str:
    """Schemathesis' settings: names that exist, most of the time."""
    with service.client() as lead:
        token = lead.create_token(NewToken(name="to be revoked", role="viewer")).token.id
    names = {"path.run": run.id, "query.runs": run.id, "path.site": "hospital-1", "path.name": "hospital-1"}
    names["path.token"] = token
    lines = ["[dictionaries]"]
    lines += [f'"{name}" = {{ values = ["{value}"] }}' for name, value in names.items()]
    lines += ["[parameters]"]
    lines += [f'"{name}" = {{ dictionary = "{name}", probability = 0.8 }}' for name in names]
    return "\n".join(lines)


def test_every_operation_keeps_to_its_description(
    service: Service, run: Run, description: Mapping[str, Mapping[str, object]], tmp_path: Path
) -> None:
    (tmp_path / "schemathesis.toml").write_text(known_names(service, run))
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}{API}/openapi.json"),
        *("--header", f"Authorization: Bearer {service.secret()}", "--checks", CHECKS),
        *("--exclude-path", STREAM, "--phases", "examples,coverage,fuzzing", "--max-examples", "15"),
        *("--generation-deterministic", "--request-timeout", "60", "--no-color"),
        *("--report", "har", "--report-har-path", "met.har"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    operations = {f"{method.upper()} {path}" for path, methods in description.items() for method in methods}
    tested = re.search(r"Tested: (\d+)", done.stdout)
    assert tested is not None
    assert int(tested[1]) == len(operations) - 1, done.stdout[-3000:]
    assert "Errored" not in done.stdout
    assert "Skipped" not in done.stdout
    met = statuses(json.loads((tmp_path / "met.har").read_text()), operations)
    succeeded = {operation for operation, seen in met.items() if any(200 <= status < 300 for status in seen)}
    assert operations - succeeded - BY_LUCK == {f"GET {STREAM}"}


def statuses(
    har: Mapping[str, Mapping[str, list[dict[str, dict[str, str]]]]], operations: set[str]
) -> dict[str, set[int]]:
    """The statuses that each operation was answered with; of two that fit an address, the one without a gap."""
    forms = {
        operation: re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(operation))) for operation in operations
    }
    met: dict[str, set[int]] = defaultdict(set)
    for entry in har["log"]["entries"]:
        asked = f"{entry['request']['method']} {urlsplit(entry['request']['url']).path}"
        fitting = sorted(
            (one for one, form in forms.items() if form.fullmatch(asked)), key=lambda one: one.count("{")
        )
        if fitting:
            met[fitting[0]].add(int(entry["response"]["status"]))
    return met


def test_a_page_of_events_keeps_to_its_description(
    service: Service, run: Run, description: Mapping[str, Mapping[str, object]]
) -> None:
    assert STREAM in description
    headers = {"Authorization": f"Bearer {service.secret()}"}
    answer = httpx.get(service.url + STREAM.format(run=run.id), headers=headers)
    assert answer.headers["content-type"] == "application/json"
    page = Page[Event].model_validate_json(answer.content, strict=True)
    assert [event.kind for event in page.items] == ["created", "start", "round", "round", "completed"]
