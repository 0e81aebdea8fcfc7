"""`python -m tests.dashboard.browser`: a machine → a Chromium on it; Debian's is installed where it may be."""

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SKIPPED = "browser tests are skipped: no Chromium or Chrome is installed, and it cannot be installed without root"


def installed() -> str | None:
    """The path of an installed Chromium or Chrome."""
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in found if path), str(MAC) if MAC.exists() else None)


def install() -> None:
    """Install Debian's package, where this is Debian and we are root; quietly nothing elsewhere."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", "chromium"]):
        subprocess.run(["apt-get", *words], env=environment, stdout=subprocess.DEVNULL, check=False)


def main() -> None:
    """Have a browser, or say in one line that there is none."""
    if installed() is None:
        install()
    print(installed() or SKIPPED)


if __name__ == "__main__":
    main()
