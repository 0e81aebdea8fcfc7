"""Nothing → which code and libraries a result was obtained with."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from mammofed import __version__


def provenance() -> dict[str, str]:
    """Versions and, in a checkout, the commit (with `+` where files differ from it)."""
    libraries = {name: version(name) for name in ("torch", "monai", "numpy")}
    return {"mammofed": __version__, "commit": commit(), "python": platform.python_version(), **libraries}


def commit() -> str:
    """The short commit of the checkout this file lies in, or `unknown`."""
    here = Path(__file__).parent
    try:
        words = ["git", "describe", "--always", "--dirty=+", "--abbrev=9", "--exclude=*"]
        found = subprocess.run(words, cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
