"""A kit from the coordinator → the site's folder, in which its agent works."""

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from cryptography import x509

from mammofed.errors import BadData, BadSetting


@contextmanager
def opened(kit: Path) -> Iterator[zipfile.ZipFile]:
    """A kit's file, open; what is no kit is refused."""
    if not kit.is_file():
        raise BadSetting(f"no kit {kit}: the coordinator's mammofed federation init made one for each site")
    try:
        with zipfile.ZipFile(kit) as packed:
            yield packed
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise BadData(f"{kit} is no kit of a site ({error}): ask the coordinator for another") from error


def site_of(kit: Path) -> str:
    """The name of the site that a kit was made for."""
    with opened(kit) as packed:
        site: str = json.loads(packed.read("kit.json"))["site"]
    return site


def unpack_kit(kit: Path, home: Path) -> None:
    """Unpack a kit for this user alone."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    target = home / "kit"
    with opened(kit) as packed:
        if any(not (target / name).resolve().is_relative_to(target.resolve()) for name in packed.namelist()):
            raise BadData(f"kit {kit} has files that would lie outside of its folder: ask for another")
        packed.extractall(target)
    for path in (target / "startup").iterdir():
        path.chmod(0o600)


def server_host(home: Path) -> str:
    """Under which name the site reaches the coordinator."""
    [server] = json.loads((home / "kit" / "startup" / "fed_client.json").read_bytes())["servers"]
    target: str = server["service"]["target"]
    return target.rpartition(":")[0]


def expiry_of(home: Path) -> datetime:
    """When the site's certificate ends."""
    return x509.load_pem_x509_certificate(
        (home / "kit" / "startup" / "client.crt").read_bytes()
    ).not_valid_after_utc
