"""Who may do what: every endpoint with every role, tokens that end, guessers that wait, a sealed trail."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from app.client import API, Coordinator, CoordinatorRefused
from app.coordinator import audit
from app.coordinator.bounded import LARGEST_BODY
from app.coordinator.db import TokenRow, now, writing_session
from app.coordinator.main import create_app, opened
from app.schemas.access import NewToken
from app.schemas.runs import Run
from app.settings import Settings
from tests.app.coordinator.services import SMALL, Service, answer_of, running_coordinator, wait_until

pytestmark = pytest.mark.xdist_group("coordinator")
CALLERS = ("coordinator", "own site", "other site", "viewer", "anonymous")
Statuses = tuple[int, int, int, int, int]  # in the order of the callers
OPEN: Statuses = (200, 200, 200, 200, 200)
LOOK: Statuses = (200, 200, 200, 200, 401)
LEAD: Statuses = (200, 403, 403, 403, 401)
MATRIX: dict[str, Statuses] = {
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": OPEN,
    "GET /api/v1/me": LOOK,
    "GET /api/v1/runs": LOOK,
    "POST /api/v1/runs": (422, 403, 403, 403, 401),  # 422: allowed, and then refused for its nonsense
    "POST /api/v1/runs/estimate": (422, 403, 403, 403, 401),
    "GET /api/v1/runs/{run}": LOOK,
    "POST /api/v1/runs/{run}/{action}": (409, 403, 403, 403, 401),  # 409: allowed, but the run has ended
    "GET /api/v1/runs/{run}/rounds": LOOK,
    "GET /api/v1/runs/{run}/metrics": LOOK,
    "GET /api/v1/runs/{run}/sites": LOOK,
    "GET /api/v1/runs/{run}/sites/{site}/gallery": (200, 200, 404, 200, 401),
    "GET /api/v1/runs/{run}/drift": LOOK,
    "GET /api/v1/runs/{run}/events": LOOK,
    "GET /api/v1/runs/{run}/predictions": LOOK,
    "GET /api/v1/runs/{run}/results": LOOK,
    "GET /api/v1/runs/{run}/model": LOOK,
    "GET /api/v1/runs/{run}/model-card": LOOK,
    "GET /api/v1/events": LOOK,
    "GET /api/v1/compare": LOOK,
    "GET /api/v1/studies": LOOK,
    "GET /api/v1/algorithms": LOOK,
    "GET /api/v1/certificates": LOOK,
    "GET /api/v1/models": LOOK,
    "GET /api/v1/presets": LOOK,
    "GET /api/v1/sites": LOOK,
    "POST /api/v1/sites": (422, 403, 403, 403, 401),
    "POST /api/v1/sites/{name}/{action}": (200, 200, 404, 403, 401),
    "GET /api/v1/tokens": LEAD,
    "POST /api/v1/tokens": (422, 403, 403, 403, 401),
    "DELETE /api/v1/tokens/{token}": (404, 403, 403, 403, 401),  # 404: allowed, but there is no such token
    "POST /api/v1/tokens/exchange": (422, 422, 422, 422, 422),  # the one-time token in the body is the sign-in
    "GET /api/v1/audit": LEAD,
    "GET /api/v1/audit/check": LEAD,
}


def call(service: Service, secret: str | None, operation: str, run: Run) -> int:
    method, path = operation.split(" ")
    filled = path.format(run=run.id, site="hospital-1", name="hospital-1", action="pause", token="0" * 12)
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    body = {"nonsense": 1} if method == "POST" else None  # roles are checked before it is
    asked = {"runs": run.id} if path.endswith("/compare") else None
    address = service.url + filled
    return httpx.request(method, address, headers=headers, json=body, params=asked, timeout=60).status_code


def test_the_matrix_names_every_operation(coordinator: Service) -> None:
    paths = httpx.get(f"{coordinator.url}{API}/openapi.json").json()["paths"]
    assert {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods} == set(MATRIX)


def test_every_operation_with_every_caller(coordinator: Service, run: Run) -> None:
    secrets: dict[str, str | None] = {
        "coordinator": coordinator.secret(),
        "own site": coordinator.token("site", "hospital-1"),
        "other site": coordinator.token("site", "hospital-2"),
        "viewer": coordinator.token("viewer"),
        "anonymous": None,
    }
    assert tuple(secrets) == CALLERS
    found = {
        operation: tuple(call(coordinator, secret, operation, run) for secret in secrets.values())
        for operation in MATRIX
    }
    with coordinator.client() as lead:
        lead.act_on_site("hospital-1", "resume")
    assert found == MATRIX


def test_an_operator_acts_on_the_own_site_alone(coordinator: Service, run: Run) -> None:
    with coordinator.client(coordinator.token("site", "hospital-1")) as operator:
        assert operator.act_on_site("hospital-1", "pause").condition == "paused"
        assert operator.act_on_site("hospital-1", "resume").condition == "active"
        with pytest.raises(CoordinatorRefused, match="not yours") as refusal:
            operator.act_on_site("hospital-2", "pause")
        assert refusal.value.problem.status == 404


def test_an_operator_sees_the_own_numbers_alone(coordinator: Service, run: Run) -> None:
    with coordinator.client(coordinator.token("site", "hospital-2")) as operator:
        assert [site.name for site in operator.sites()] == ["hospital-2"]
        assert [site.site for site in operator.run_sites(run.id)] == ["hospital-2"]
        assert list(operator.metrics(run.id).sites) == ["hospital-2"]
        assert [part.site for part in operator.rounds(run.id).items[0].sites] == ["hospital-2"]
        assert list(operator.drift(run.id).mean_statistics) == ["hospital-2"]
        with pytest.raises(CoordinatorRefused):
            operator.gallery(run.id, "hospital-1")
        assert operator.run(run.id).actions == ()


def test_an_enrolment_token_works_once(coordinator: Service) -> None:
    with coordinator.client() as lead:
        enrolment = lead.enrol("hospital-9")
        with pytest.raises(CoordinatorRefused, match="enrolled already"):
            lead.enrol("hospital-9")
    with coordinator.client(enrolment.token) as operator, pytest.raises(CoordinatorRefused, match="enrolment"):
        operator.me()
    with Coordinator(coordinator.url, "") as newcomer:
        secret = newcomer.exchange(enrolment.token).secret
        with pytest.raises(CoordinatorRefused, match="used"):
            newcomer.exchange(enrolment.token)
    with coordinator.client(secret) as operator:
        assert (operator.me().role, operator.me().site) == ("site", "hospital-9")
        assert operator.act_on_site("hospital-9", "withdraw").condition == "withdrawn"
        with pytest.raises(CoordinatorRefused, match="enrol it again"):
            operator.act_on_site("hospital-9", "resume")


def test_of_two_who_enrol_a_site_at_once_one_does(coordinator: Service) -> None:
    headers = {"Authorization": f"Bearer {coordinator.secret()}"}

    def enrol(number: int) -> int:
        address = f"{coordinator.url}{API}/sites"
        return httpx.post(address, headers=headers, json={"name": "wanted"}, timeout=60).status_code

    with coordinator.database() as engine, ThreadPoolExecutor(2) as pool:
        with writing_session(engine) as session:
            audit.hold(session)  # nobody can commit an entry, so both are under way at the same time
            asked = [pool.submit(enrol, number) for number in range(2)]
            wait_until(lambda: engine.dialect.name == "sqlite" or waiting(engine) == 2, "both to wait")
        assert sorted(one.result() for one in asked) == [201, 409]


def waiting(engine: Engine) -> int:
    """How many of PostgreSQL's connections wait for a lock."""
    with Session(engine) as session:
        return session.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")) or 0


def test_a_revoked_token_ends_at_once(coordinator: Service) -> None:
    with coordinator.client() as lead:
        made = lead.create_token(NewToken(name="reader", role="viewer"))
        with coordinator.client(made.secret) as reader:
            assert reader.me().name == "reader"
            assert lead.revoke(made.token.id).revoked_at is not None
            with pytest.raises(CoordinatorRefused, match="revoked"):
                reader.me()


def test_a_token_expires(coordinator: Service) -> None:
    with coordinator.client() as lead:
        made = lead.create_token(NewToken(name="short", role="viewer", days=1e-9))
        with coordinator.client(made.secret) as reader, pytest.raises(CoordinatorRefused, match="expired"):
            reader.me()


def test_a_site_token_names_its_site_and_no_other_does(coordinator: Service) -> None:
    with coordinator.client() as lead:
        for wanted in (NewToken(name="x", role="site"), NewToken(name="x", role="viewer", site="hospital-1")):
            with pytest.raises(CoordinatorRefused, match="names its site"):
                lead.create_token(wanted)


def test_guessers_wait_and_neighbours_do_not(coordinator: Service) -> None:
    with coordinator.client() as lead:
        victim = lead.create_token(NewToken(name="victim", role="viewer"))
        wrong = victim.secret[:-6] + "AAAAAA"
        seen = [attempt(coordinator, wrong) for _ in range(12)]
        assert seen == [401] * 10 + [429] * 2
        assert attempt(coordinator, victim.secret) == 429
        assert lead.me().name == "admin"


def test_a_guesser_of_enrolments_does_not_keep_others_from_theirs(coordinator: Service) -> None:
    with coordinator.client() as lead, Coordinator(coordinator.url, "") as newcomer:
        enrolment = lead.enrol("hospital-7")
        wrong = {"token": enrolment.token[:-6] + "AAAAAA"}
        address = f"{coordinator.url}{API}/tokens/exchange"
        seen = [httpx.post(address, json=wrong).status_code for _ in range(12)]
        assert seen == [401] * 10 + [429] * 2
        other = lead.enrol("hospital-8")
        assert newcomer.exchange(other.token).token.site == "hospital-8"


def test_an_enrolment_token_expires(coordinator: Service) -> None:
    with coordinator.client() as lead, Coordinator(coordinator.url, "") as newcomer:
        enrolment = lead.enrol("hospital-6")
        with coordinator.database() as engine, writing_session(engine) as session:
            session.get_one(TokenRow, enrolment.token.split("_")[1]).expires_at = now()
        with pytest.raises(CoordinatorRefused, match="expired"):
            newcomer.exchange(enrolment.token)


def attempt(service: Service, secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.get(f"{service.url}{API}/me", headers=headers).status_code


def test_secrets_are_kept_as_digests_and_files_are_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)  # made by someone else, before
    with running_coordinator(home) as service:
        secret = service.secret()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir() if path.is_file()}
        assert modes.keys() >= {"admin.token", "audit.key", "mammofed.db"}
        assert not any(mode & 0o077 for mode in modes.values()), modes
        with service.client() as lead:
            viewer = lead.create_token(NewToken(name="v", role="viewer")).secret
            listed = [token.model_dump_json() for token in lead.tokens()]
        assert not any(viewer in line or secret in line for line in listed)
    written = b"".join(path.read_bytes() for path in service.home.glob("mammofed.db*"))
    assert viewer.encode() not in written
    assert secret.encode() not in written
    assert secret not in service.log()
    assert str(service.home / "admin.token") in service.log()


@pytest.mark.parametrize("end", ["revoked_at", "expires_at"])
def test_a_start_makes_an_admin_token_where_none_is_valid(tmp_path: Path, end: str) -> None:
    file, seen = tmp_path / "admin.token", []
    for _ in range(3):
        with opened(Settings(home=tmp_path)) as service:
            seen.append(file.read_text().strip())
            assert service.doorkeeper.admit(seen[-1], "here").role == "coordinator"
            assert audit.verify(Session(service.engine), service.key).intact
            if len(seen) == 2:
                with writing_session(service.engine) as session:
                    for row in session.scalars(select(TokenRow)):
                        setattr(row, end, now())
            service.engine.dispose()
    assert seen[0] == seen[1] != seen[2]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_answers_carry_security_headers_and_no_cors(coordinator: Service) -> None:
    answer = httpx.get(f"{coordinator.url}/healthz", headers={"Origin": "http://evil.example"})
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers


def test_browsers_may_call_from_the_origins_that_are_set(tmp_path: Path) -> None:
    with opened(Settings(home=tmp_path, cors_origins=("http://ward.example",))) as service:
        app = create_app(service)
        for origin, allowed in (("http://ward.example", "http://ward.example"), ("http://evil.example", None)):
            headers = {"Origin": origin, "Access-Control-Request-Method": "GET"}
            answer = answer_of(app, "OPTIONS", f"{API}/runs", headers)
            assert answer.headers.get("access-control-allow-origin") == allowed
        service.engine.dispose()


@pytest.mark.parametrize(
    "path", ["/api/v1/nowhere", "/api/v1/runs/0000-none", "/api/v1/runs/%00", "/api/v1/runs?limit=0"]
)
def test_errors_are_problem_documents(coordinator: Service, path: str) -> None:
    headers = {"Authorization": f"Bearer {coordinator.secret()}"}
    answer = httpx.get(coordinator.url + path, headers=headers)
    assert answer.headers["content-type"] == "application/problem+json"
    assert 400 <= answer.status_code < 500
    said = answer.json()
    assert said["status"] == answer.status_code
    assert said["title"]
    assert said["detail"]


def test_a_method_that_is_not_there_is_a_problem_document(coordinator: Service) -> None:
    answer = httpx.put(f"{coordinator.url}{API}/runs")
    assert (answer.status_code, answer.json()["status"]) == (405, 405)
    assert answer.json()["detail"] == "PUT /api/v1/runs: method not allowed"
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_that_is_no_json_is_told_what_is_wrong(coordinator: Service) -> None:
    kind = {"Content-Type": "application/json"}
    answer = httpx.post(f"{coordinator.url}{API}/tokens/exchange", headers=kind, content=b"{token: 1}")
    assert answer.status_code == 422
    assert "Expecting property name" in answer.json()["detail"]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_long_body_is_refused_before_it_is_read(coordinator: Service, in_pieces: bool) -> None:
    body = b" " * LARGEST_BODY + b"{}"
    sent = iter([body[:1000], body[1000:]]) if in_pieces else body
    answer = httpx.post(f"{coordinator.url}{API}/tokens/exchange", content=sent)
    assert (answer.status_code, answer.json()["status"]) == (413, 413)
    assert answer.headers["content-type"] == "application/problem+json"
    allowed = httpx.post(f"{coordinator.url}{API}/tokens/exchange", content=body[-LARGEST_BODY:])
    assert allowed.status_code == 422


def test_the_audit_trail_names_actor_action_and_subject(coordinator: Service) -> None:
    with coordinator.client() as lead:
        draft = lead.create(SMALL)
        lead.act(draft.id, "stop")
        newest, before = lead.audit(subject=draft.id).items
        assert (before.actor, before.action, before.detail["settings"]["model"]) == (
            "admin",
            "run.create",
            "densenet-small",
        )
        assert (newest.action, newest.subject) == ("run.stop", draft.id)
        assert lead.verify_audit().intact
