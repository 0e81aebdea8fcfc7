"""A kit from the coordinator → the site's folder, in which its agent works."""

import json
import zipfile
from datetime import datetime
from pathlib import Path

from cryptography import x509

from mammofed.errors import BadData, BadSetting


def unpack_kit(kit: Path, home: Path) -> str:
    """Unpack a kit for this user alone; the name of the site it was made for."""
    if not kit.is_file():
        raise BadSetting(f"no kit {kit}: the coordinator's mammofed federation init made one for each site")
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    target = home / "kit"
    try:
        with zipfile.ZipFile(kit) as packed:
            if any(not (target / name).resolve().is_relative_to(target.resolve()) for name in packed.namelist()):
                raise BadData(f"kit {kit} has files that would lie outside of its folder: ask for another")
            site: str = json.loads(packed.read("kit.json"))["site"]
            packed.extractall(target)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise BadData(f"{kit} is no kit of a site ({error}): ask the coordinator for another") from error
    for path in (target / "startup").iterdir():
        path.chmod(0o600)
    return site


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
