"""A folder → a hospital's patch store in it, cut from DICOM files of drawn patients."""

from pathlib import Path

from typer.testing import CliRunner

from app.cli import app


def mammofed(*words: object) -> str:
    """What a command prints; warnings are fine, failures are not."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code in (0, 1), done.output or done.exception
    return done.output


def cut_store(folder: Path, patients: int = 6) -> Path:
    """Patches of some patients."""
    studies, store = folder / "studies", folder / "patches"
    mammofed("synth", "studies", "--patients", patients, "--spacing", 0.4, "--out", studies)
    mammofed("patches", studies, "--out", store, "--patch", 32, "--per-lesion", 6, "--workers", 1)
    return store
