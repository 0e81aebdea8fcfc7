"""Calls on the coordinator → what it answered, typed; every error it tells of is one exception with its words."""

import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from app.schemas.access import AuditCheck, AuditEntry, Certificate, Enrolment, Me, NewToken, Secret, Site, Token
from app.schemas.results import Comparison, Predictions, Results, Study
from app.schemas.runs import Drift, Event, Round, Run, RunMetrics, RunSettings, RunSite
from app.schemas.shape import Action, ModelFormat, Page, Problem, Which
from app.schemas.tables import AlgorithmRow, Estimate, Health, ModelRow, Preset
from mammofed.errors import MammofedError

Shape = TypeVar("Shape", bound=BaseModel)
API = "/api/v1"
COMPUTED = 600.0  # seconds for an answer that is computed while one waits: many patches, many resamples


class CoordinatorRefused(MammofedError):
    """The coordinator answered with an error; `problem` holds all it said."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class CoordinatorLost(MammofedError):
    """The coordinator did not answer."""


class Coordinator:
    """A signed-in connection; the commands and the dashboard use the same one."""

    def __init__(self, url: str, token: str, timeout: float = 30.0) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}  # an enrolment needs none yet
        self.http = httpx.Client(base_url=self.url + API, headers=headers, timeout=timeout, trust_env=False)

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def call(self, method: str, path: str, **how: Any) -> httpx.Response:
        """One request; anything but a 2xx becomes an exception."""
        try:
            answer = self.http.request(method, path, **how)
        except httpx.HTTPError as error:
            raise CoordinatorLost(f"the coordinator at {self.url} does not answer ({error})") from error
        if not answer.is_success:
            raise CoordinatorRefused(problem_of(answer))
        if answer.headers.get("content-type", "").startswith("text/html"):
            raise CoordinatorLost(f"{self.url} answers with a web page: it is not a coordinator's address")
        return answer

    def get(self, shape: type[Shape], path: str, **parameters: Any) -> Shape:
        """One thing, in its shape."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return shape.model_validate_json(self.call("GET", path, params=given).content)

    def listed(self, shape: type[Shape], path: str, **parameters: Any) -> tuple[Shape, ...]:
        """A whole list that is not paged."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return tuple(shape.model_validate(item) for item in self.call("GET", path, params=given).json())

    # who

    def me(self) -> Me:
        """Who the token belongs to."""
        return self.get(Me, "/me")

    def health(self) -> Health:
        """Whether the service is well."""
        return Health.model_validate_json(self.http.get(f"{self.url}/readyz").content)

    # runs

    def runs(self, after: str | None = None, limit: int = 50) -> Page[Run]:
        """Runs, the newest first."""
        return self.get(Page[Run], "/runs", after=after, limit=limit)

    def run(self, run: str) -> Run:
        """One run as it stands."""
        return self.get(Run, f"/runs/{run}")

    def create(self, settings: RunSettings, key: str | None = None) -> Run:
        """A new draft; the same idempotency key gives the same run."""
        headers = {"Idempotency-Key": key} if key else {}
        body = settings.model_dump(mode="json")
        return Run.model_validate_json(self.call("POST", "/runs", json=body, headers=headers).content)

    def act(self, run: str, action: Action) -> Run:
        """Start, pause, resume, step or stop."""
        return Run.model_validate_json(self.call("POST", f"/runs/{run}/{action}").content)

    def estimate(self, settings: RunSettings) -> Estimate:
        """What a run with these settings will cost."""
        answer = self.call("POST", "/runs/estimate", json=settings.model_dump(mode="json"))
        return Estimate.model_validate_json(answer.content)

    def rounds(self, run: str, after: int | None = None, limit: int = 50) -> Page[Round]:
        """Committed rounds, the newest first; `after` a round's number gives those before it."""
        return self.get(Page[Round], f"/runs/{run}/rounds", after=after, limit=limit)

    def metrics(self, run: str, after: int = 0, points: int = 500) -> RunMetrics:
        """Curves of the rounds after the given one."""
        return self.get(RunMetrics, f"/runs/{run}/metrics", after=after, points=points)

    def run_sites(self, run: str) -> tuple[RunSite, ...]:
        """What is known of the sites' data."""
        return self.listed(RunSite, f"/runs/{run}/sites")

    def gallery(self, run: str, site: str) -> bytes:
        """A PNG of synthetic patches by class."""
        return self.call("GET", f"/runs/{run}/sites/{site}/gallery").content

    def drift(self, run: str, round: int | None = None) -> Drift:
        """How far the sites are apart, in a round or the last one."""
        return self.get(Drift, f"/runs/{run}/drift", round=round)

    def events(self, run: str | None = None, after: int = 0, limit: int = 200) -> Page[Event]:
        """What happened, the oldest first; of one run or of all."""
        return self.get(Page[Event], f"/runs/{run}/events" if run else "/events", after=after, limit=limit)

    def follow(self, run: str, after: int = 0) -> Iterator[Event]:
        """Events as they happen (server-sent events), until the run ends."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        try:
            with self.http.stream("GET", f"/runs/{run}/events", headers=headers, timeout=60.0) as answer:
                if not answer.is_success:
                    answer.read()
                    raise CoordinatorRefused(problem_of(answer))
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        yield Event.model_validate_json(line[5:])
        except httpx.HTTPError as error:
            raise CoordinatorLost(f"the coordinator at {self.url} does not answer ({error})") from error

    def predictions(self, run: str, which: Which = "best") -> Predictions:
        """Scores and labels of the test patches."""
        return self.get(Predictions, f"/runs/{run}/predictions", which=which)

    def results(self, run: str, which: Which = "best", threshold: float | None = None) -> Results:
        """Everything that the scores tell."""
        how = {"which": which, **({} if threshold is None else {"threshold": threshold})}
        answer = self.call("GET", f"/runs/{run}/results", params=how, timeout=COMPUTED)
        return Results.model_validate_json(answer.content)

    def compare(self, runs: tuple[str, ...], reference: str | None = None) -> Comparison:
        """Runs side by side, with p-values against the reference (the first one, by default)."""
        how = {"runs": ",".join(runs), **({"reference": reference} if reference else {})}
        return Comparison.model_validate_json(self.call("GET", "/compare", params=how, timeout=COMPUTED).content)

    def studies(self) -> tuple[Study, ...]:
        """Studies of metric against heterogeneity."""
        return self.listed(Study, "/studies")

    def model(self, run: str, which: Which, form: ModelFormat, site: str | None = None) -> bytes:
        """The model as a file; the coordinator has checked that it gives the trained model's scores."""
        how = {"which": which, "format": form, **({"site": site} if site else {})}
        return self.call("GET", f"/runs/{run}/model", params=how, timeout=COMPUTED).content

    def model_card(self, run: str) -> str:
        """The model card, as Markdown."""
        return self.call("GET", f"/runs/{run}/model-card").text

    # sites, tokens, audit, tables

    def sites(self) -> tuple[Site, ...]:
        """Enrolled sites that the caller may see."""
        return self.listed(Site, "/sites")

    def certificates(self) -> tuple[Certificate, ...]:
        """When the federation's certificates end."""
        return self.listed(Certificate, "/certificates")

    def enrol(self, name: str) -> Enrolment:
        """A new site, with a one-time token for its operator."""
        return Enrolment.model_validate_json(self.call("POST", "/sites", json={"name": name}).content)

    def act_on_site(self, name: str, action: str) -> Site:
        """Pause, resume or withdraw a site."""
        return Site.model_validate_json(self.call("POST", f"/sites/{name}/{action}").content)

    def exchange(self, token: str) -> Secret:
        """A lasting token for a one-time one."""
        return Secret.model_validate_json(self.call("POST", "/tokens/exchange", json={"token": token}).content)

    def tokens(self) -> tuple[Token, ...]:
        """All tokens, without their secrets."""
        return self.listed(Token, "/tokens")

    def create_token(self, wanted: NewToken) -> Secret:
        """A new token; its secret is shown this once."""
        return Secret.model_validate_json(
            self.call("POST", "/tokens", json=wanted.model_dump(mode="json")).content
        )

    def revoke(self, token: str) -> Token:
        """End a token at once."""
        return Token.model_validate_json(self.call("DELETE", f"/tokens/{token}").content)

    def audit(self, after: int | None = None, limit: int = 50, **wanted: str | None) -> Page[AuditEntry]:
        """Who did what, the newest first; filtered by actor, action or subject."""
        return self.get(Page[AuditEntry], "/audit", after=after, limit=limit, **wanted)

    def verify_audit(self) -> AuditCheck:
        """Whether the chain holds."""
        return self.get(AuditCheck, "/audit/check")

    def algorithms(self) -> tuple[AlgorithmRow, ...]:
        """The table of algorithms."""
        return self.listed(AlgorithmRow, "/algorithms")

    def models(self) -> tuple[ModelRow, ...]:
        """The networks."""
        return self.listed(ModelRow, "/models")

    def presets(self) -> tuple[Preset, ...]:
        """Settings to begin with."""
        return self.listed(Preset, "/presets")


def problem_of(answer: httpx.Response) -> Problem:
    """The problem document of an answer, also where something between us and the coordinator answered instead."""
    try:
        said: Mapping[str, Any] = json.loads(answer.content)
        return Problem.model_validate(said)
    except ValueError:
        text = f"{answer.url} answered {answer.status_code} without saying why"
        return Problem(title="unexpected answer", status=answer.status_code, detail=text)
