"""A site's window over real HTTP: the store's own numbers, for who has the secret, on this machine alone."""

import io
import json
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from app.commands.inspect import look_at
from app.site.data import SiteSettings, introduce, open_site, withheld_below
from app.site.window import View, Window, opened, view_of
from mammo.store import PatchStore, open_store
from mammo.style import parse_style, sigmoid
from mammofed.errors import BadSetting
from tests.federation.stores import cut_store, mammofed

STYLE = "sigmoid:0.4:0.3"
PATHS = ("/data", "/gallery", "/preflight")
TILE = 96


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> SiteSettings:
    return SiteSettings("hospital-1", str(cut_store(tmp_path_factory.mktemp("site"))), STYLE)


@pytest.fixture(scope="module")
def view(settings: SiteSettings) -> View:
    report, _ = look_at(Path(settings.data), [], 1, pictures=False)
    return view_of(settings, open_site(settings, 0), report)


@pytest.fixture(scope="module")
def train(settings: SiteSettings) -> PatchStore:
    return open_store(Path(settings.data), "train")


def get(window: Window, path: str, **headers: str) -> httpx.Response:
    """One request, with the window's secret unless the test gives another."""
    given = {"Authorization": f"Bearer {window.token.read_text().strip()}", **headers}
    return httpx.get(window.url + path, headers=given, trust_env=False)


def test_the_numbers_are_those_of_the_store(
    view: View, train: PatchStore, settings: SiteSettings, tmp_path: Path
) -> None:
    with opened(tmp_path, view) as window:
        told = get(window, "/data").json()
    test = open_store(Path(settings.data), "test")
    assert (told["site"], told["style"]) == ("hospital-1", STYLE)
    for part, store in (("train", train), ("test", test)):
        assert told[part] == {name: sum(row["class"] == name for row in store.rows) for name in store.classes}
    assert told["vendors"] == Counter(row["vendor"] for row in train.rows)
    assert len(told["vendors"]) > 1
    assert told["styles"] == {"none": len(train.rows)}


def test_grey_levels_are_counted_before_and_after_the_style(view: View, train: PatchStore, tmp_path: Path) -> None:
    with opened(tmp_path, view) as window:
        told = get(window, "/data").json()
    assert len(train.rows) <= 400  # a histogram of more is one of a sample
    before = train.read(np.arange(len(train.rows)))
    for pixels, shown in (
        (before, told["histogram_before"]),
        (sigmoid(before, parse_style(STYLE)), told["histogram"]),
    ):
        assert shown == pytest.approx(np.histogram(pixels, 32, (0, 1))[0] / pixels.size, abs=1e-6)


def test_the_gallery_is_a_picture_of_the_patches_as_trained_on(
    view: View, train: PatchStore, tmp_path: Path
) -> None:
    with opened(tmp_path, view) as window:
        answer = get(window, "/gallery")
    assert answer.headers["content-type"] == "image/png"
    sheet = Image.open(io.BytesIO(answer.content))
    assert sheet.format == "PNG"
    for number in range(len(train.classes)):
        top = number * (TILE + 4)
        tile = np.asarray(sheet.crop((0, top, TILE, top + TILE)))  # grey, then how solid it is
        if not (train.labels == number).any():
            assert not tile[..., 1].any()
            continue
        patch = sigmoid(train.read(np.flatnonzero(train.labels == number)[:1]), parse_style(STYLE))[0, 0]
        wanted = Image.fromarray((patch * 255).astype(np.uint8)).resize((TILE, TILE))
        assert np.array_equal(tile[..., 0], np.asarray(wanted))
        assert (tile[..., 1] == 255).all()


def test_the_report_is_that_of_inspect(view: View, settings: SiteSettings, tmp_path: Path) -> None:
    with opened(tmp_path, view) as window:
        told = get(window, "/preflight").json()
    report = json.loads(mammofed("inspect", settings.data, "--json"))
    assert told.pop("verdict").startswith(("This data can be used", "It can be used"))
    assert told.pop("made_at")
    assert told == {name: report[name] for name in told}
    assert report.keys() - told.keys() == {"histograms"}  # by class; the window has those of training


def test_without_the_secret_nothing_is_seen(view: View, tmp_path: Path) -> None:
    with opened(tmp_path, view) as window:
        secret = window.token.read_text().strip()
        for path in PATHS:
            for wrong in (
                "",
                "Bearer",
                f"Basic {secret}",
                f"Bearer {secret[:-1]}",
                f"Bearer {secret}x",
                "Bearer \xff",
            ):
                answer = httpx.get(
                    window.url + path, headers={b"Authorization": wrong.encode("latin-1")}, trust_env=False
                )
                assert answer.status_code == 401, wrong
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert answer.json().keys() == {"type", "title", "status", "detail", "instance"}


def test_the_secret_is_its_owner_s_and_lasts_as_long_as_the_window(view: View, tmp_path: Path) -> None:
    left_over = tmp_path / "window.token"
    left_over.write_text("of an agent that was killed")
    left_over.chmod(0o644)
    with opened(tmp_path, view) as window:
        assert window.token == left_over
        assert window.token.stat().st_mode & 0o777 == 0o600
        first = window.token.read_text()
        assert len(first.strip()) >= 43  # 256 bits
    assert not window.token.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{window.url}/data", trust_env=False)
    with opened(tmp_path, view) as again:
        assert again.token.read_text() != first
        assert get(again, "/data", Authorization=f"Bearer {first.strip()}").status_code == 401


def test_it_listens_on_this_machine_alone_and_under_no_other_name(view: View, tmp_path: Path) -> None:
    with opened(tmp_path, view) as window:
        port = httpx.URL(window.url).port
        places = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert [place.ip for place in places if place.port == port] == ["127.0.0.1"]
        for path in PATHS:
            assert get(window, path, Host=f"localhost:{port}").is_success
            foreign = get(window, path, Host=f"elsewhere.example:{port}", Origin="http://elsewhere.example")
            assert foreign.status_code == 421
            assert foreign.headers["content-type"] == "application/problem+json"
            near = get(window, path, Origin="http://localhost:3000")
            assert near.headers["cache-control"] == "no-store"
            assert not [name for name in near.headers if name.startswith("access-control")]


def test_a_port_that_is_taken_is_refused_in_words(view: View, tmp_path: Path) -> None:
    with opened(tmp_path, view) as window:
        port = httpx.URL(window.url).port
        assert port
        with pytest.raises(BadSetting, match=f"port {port} .* --window-port"), opened(tmp_path / "b", view, port):
            pytest.fail("two windows at one address")


def test_drawn_data_have_their_vendor_and_no_report(tmp_path: Path) -> None:
    settings = SiteSettings("hospital-1", "synthetic:1/2,patches=100,size=32,skew=0.8")
    with opened(tmp_path, view_of(settings, open_site(settings, 0), None)) as window:
        told = get(window, "/data").json()
        assert get(window, "/preflight").json() is None
    assert list(told["vendors"]) == ["drawn vendor 1", "drawn vendor 2"]
    assert sum(told["vendors"].values()) == sum(told["train"].values()) == 85
    assert told["histogram"] != told["histogram_before"]


def test_the_coordinator_learns_vendors_above_the_floor_and_no_grey_level(
    settings: SiteSettings, train: PatchStore
) -> None:
    counts = Counter(row["vendor"] for row in train.rows)
    floor = sorted(counts.values())[0] + 1
    chosen = SiteSettings(settings.name, settings.data, STYLE, floor=floor)
    told = introduce(chosen, open_site(chosen, 0))
    assert all(counts[name] == number >= floor for name, number in told["vendors"].items())
    assert len(told["vendors"]) < len(counts)
    assert told["patches"] - sum(told["vendors"].values()) >= floor
    assert not {"histogram", "gallery", "preflight"} & told.keys()


def test_with_a_small_number_another_is_withheld_that_the_sum_would_give_away() -> None:
    assert withheld_below(10, np.array([100, 30, 5, 40])) == [100, 0, 0, 40]
    assert withheld_below(10, np.array([100, 30, 5, 6])) == [100, 30, 0, 0]
