"""`mammofed run ...`: flags and files → runs created, controlled, watched and taken out over REST."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from app.client import Coordinator
from app.commands.connection import DEFAULT_URL, TokenFile, Url, checked, connect, console
from app.commands.follow import follow
from app.commands.shown import run_table, runs_table, status_line
from app.schemas.runs import DataSettings, RunSettings
from app.schemas.shape import Action, EngineName, MetricName, ModelFormat, Which
from fl_core.schedule import FORMS
from mammofed.errors import BadSetting
from mammofed.files import write_atomically

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Create, control, watch and export training runs."
)
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `mammofed run list` shows it.")]
OF_DATA = ("data", "folder", "sites", "skew", "image_size", "patches", "site", "test")


def one_of(values: Any) -> str:
    """The values that a setting may have, for its help."""
    return f"One of: {', '.join(values)}."


def usual() -> str:
    """The settings of a run for which nothing is asked, as flags."""
    run = RunSettings().model_dump(exclude={"data", "variance_floor"}, exclude_none=True)
    rate = {"lr": run.pop("rate")}  # the flag has a name of its own
    both = {**run, **rate, **DataSettings().model_dump(exclude_none=True)}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in both.items() if value not in ((), ""))


@app.command(epilog=f"Without --from and --preset: {usual()}")
def create(
    file: Annotated[
        Path | None, typer.Option("--from", help="TOML or JSON file with settings; flags come before it.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Settings of the coordinator to begin with.")] = None,
    start: Annotated[bool, typer.Option("--start", help="Start it at once.")] = False,
    name: Annotated[str | None, typer.Option(help="What people call it; the algorithm by default.")] = None,
    engine: Annotated[str | None, typer.Option(help=one_of(get_args(EngineName)))] = None,
    algorithm: Annotated[str | None, typer.Option(help="A row of `mammofed algorithms`.")] = None,
    model: Annotated[str | None, typer.Option(help="densenet121, resnet18 or densenet-small.")] = None,
    rounds: Annotated[int | None, typer.Option(help="R, the number of rounds.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="E, the steps of a site in a round.")] = None,
    batch: Annotated[int | None, typer.Option(help="B, the patches of a site in a step.")] = None,
    rate: Annotated[float | None, typer.Option("--lr", help="γ, the learning rate.")] = None,
    schedule: Annotated[str | None, typer.Option(help=f"Of the learning rate: {FORMS}.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Iterations over which the rate rises.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD; refused by the SCAFFOLD rows.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of data, initial weights and order.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda[:n] or mps.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of torch, at each site.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Rounds between evaluations.")] = None,
    resamples: Annotated[int | None, typer.Option(help="Bootstrap resamples for each interval.")] = None,
    selection: Annotated[
        str | None, typer.Option(help=f"What the best is best in. {one_of(get_args(MetricName))}")
    ] = None,
    quorum: Annotated[int | None, typer.Option(help="Sites that a round needs; all by default.")] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds after which a round leaves a late site out.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="synthetic or mnist.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="The coordinator's folder with MNIST's files.")] = None,
    sites: Annotated[int | None, typer.Option(help="Number of synthetic sites.")] = None,
    skew: Annotated[
        float | None, typer.Option(help="p: style skew of synthetic data, label skew of mnist.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels a side of synthetic patches.")] = None,
    patches: Annotated[int | None, typer.Option(help="Synthetic patches a site.")] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH[,style=...], or with nvflare the NAME of an enrolled site; repeatable."),
    ] = None,
    test: Annotated[str | None, typer.Option(help="Test patches that all --site share.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Create a run, a draft unless --start is given, and print its id."""
    given = dict(locals())
    apart = ("file", "preset", "start", "url", "token_file", "data_dir")
    flags = {key: value for key, value in given.items() if key not in apart and value is not None}
    if data_dir is not None:
        flags["folder"] = data_dir
    with connect(url, token_file) as coordinator:
        begin = preset_settings(coordinator, preset) if preset else {}
        settings = settings_of(begin, read_settings(file) if file else {}, nested(flags))
        run = coordinator.create(settings)
        if start:
            run = coordinator.act(run.id, "start")
    typer.echo(run.id)
    if not start:
        typer.echo(f"a draft: `mammofed run start {run.id}` starts it", err=True)


def nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags as settings: those of the data in their own table, the names of enrolled sites among the others."""
    of_data = {name: value for name, value in flags.items() if name in OF_DATA}
    others = {name: value for name, value in flags.items() if name not in OF_DATA}
    named = [words for words in of_data.get("site", ()) if "=" not in words]
    if named:
        others["sites"] = named
        of_data["site"] = [words for words in of_data["site"] if "=" in words]
    return {**others, **({"data": of_data} if of_data else {})}


def preset_settings(coordinator: Coordinator, name: str) -> dict[str, Any]:
    """The settings of the coordinator's preset of that name."""
    presets = {preset.name: preset.settings for preset in coordinator.presets()}
    if name not in presets:
        raise BadSetting(f"preset {name!r}: choose one of {', '.join(presets)}")
    return presets[name].model_dump(mode="json")


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML or JSON file."""
    try:
        text = path.read_text()
        read = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadSetting(f"{path} is not well-formed: {error}") from error
    if not isinstance(read, dict) or not isinstance(read.get("data", {}), dict):
        raise BadSetting(f"{path}: a table of settings is needed, with those of the data in a table `data`")
    return read


def settings_of(*layers: Mapping[str, Any]) -> RunSettings:
    """Layers laid over each other, the last on top, as checked settings."""
    laid: dict[str, Any] = {}
    for layer in layers:
        laid = {**laid, **layer, "data": {**laid.get("data", {}), **layer.get("data", {})}}
    return checked(RunSettings, laid)


def act(run: str, action: Action, url: str, token_file: Path | None) -> None:
    """Take an action and say how the run stands."""
    with connect(url, token_file) as coordinator:
        typer.echo(status_line(coordinator.act(run, action)))


@app.command()
def start(run: RunId, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Start a draft."""
    act(run, "start", url, token_file)


@app.command()
def pause(run: RunId, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Pause a run as soon as its open round is committed."""
    act(run, "pause", url, token_file)


@app.command()
def resume(run: RunId, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Go on with a paused run."""
    act(run, "resume", url, token_file)


@app.command()
def step(run: RunId, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Train exactly one round, then pause."""
    act(run, "step", url, token_file)


@app.command()
def stop(run: RunId, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Stop a run for good; its last committed round stays."""
    act(run, "stop", url, token_file)


@app.command()
def watch(run: RunId, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Follow a run to its end: exit code 0 when it completes, 1 when it fails or is stopped."""
    with connect(url, token_file) as coordinator:
        ended = follow(coordinator, run, console())
    if ended.state != "completed":
        raise typer.Exit(1)


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=500, help="Runs to show, the newest first.")] = 50,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """List runs, the newest first."""
    with connect(url, token_file) as coordinator:
        page = coordinator.runs(limit=limit)
    console().print(runs_table(page.items))
    if page.next is not None:
        typer.echo(f"{len(page.items)} of {page.total} runs: --limit shows more")


@app.command()
def show(run: RunId, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Show a run in full."""
    with connect(url, token_file) as coordinator:
        console().print(run_table(coordinator.run(run)))


@app.command()
def export(
    run: RunId,
    out: Annotated[Path | None, typer.Option(help="File to write; a card is printed without it.")] = None,
    form: Annotated[ModelFormat, typer.Option("--format", help="Of the model's file.")] = "safetensors",
    which: Annotated[
        Which, typer.Option(help="The best model by the run's selection metric, or the last.")
    ] = "best",
    site: Annotated[str | None, typer.Option(help="A site's own model, where the algorithm has such.")] = None,
    card: Annotated[bool, typer.Option("--card", help="The model card (Markdown) instead of the model.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Take a run's model out, checked by the coordinator to give the trained model's scores; or its card."""
    if out is None and not card:
        raise BadSetting("export needs --out FILE for a model")
    with connect(url, token_file) as coordinator:
        content = coordinator.model_card(run).encode() if card else coordinator.model(run, which, form, site)
    if out is None:
        typer.echo(content.decode())
    else:
        write_atomically(out, content)
        typer.echo(f"{out}: {len(content):,} bytes")
