"""Environment, and files in the folder of secrets → the coordinator's settings: no secret has a default."""

import os
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where the coordinator keeps its things and how it is reached; each is `MAMMOFED_NAME` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix="MAMMOFED_", frozen=True, extra="ignore", secrets_dir=os.environ.get("MAMMOFED_SECRETS")
    )

    home: Path = Field(Path("mammofed-home"), description="folder of the database, the models and the keys")
    database_url: str = Field("", description="SQLAlchemy URL; SQLite in the home folder, if empty")
    host: str = "127.0.0.1"
    port: int = Field(8400, ge=0, le=65535)
    cors_origins: tuple[str, ...] = ()
    parallel_runs: int = Field(2, ge=1, le=64, description="runs that train at a time; others wait")
    studies: Path = Field(Path("benchmarks/results"), description="folder of finished studies to show")
    federation: Path | None = Field(None, description="folder made by `mammofed federation init`")
    silence: float = Field(30.0, gt=0, description="seconds without an answer after which a site counts as gone")
    norm_factor: float = Field(20.0, gt=1, description="how many times the usual norm an update may have")

    @model_validator(mode="after")
    def with_places(self) -> Self:
        """Make the paths absolute, and PostgreSQL's URL one of the driver that is installed."""
        home = self.home.expanduser().resolve()
        url = self.database_url or f"sqlite:///{home / 'mammofed.db'}"
        for plain in ("postgres://", "postgresql://"):
            if url.startswith(plain):
                url = "postgresql+psycopg://" + url.removeprefix(plain)
        object.__setattr__(self, "home", home)
        object.__setattr__(self, "database_url", url)
        return self

    def run_folder(self, run: str) -> Path:
        """Where a run's states, scores and exports lie."""
        return self.home / "runs" / run
