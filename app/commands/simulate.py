"""`mammofed simulate`: flags → a federation trained on this machine."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from app.commands.stopping import stoppable
from app.commands.watching import Watching
from app.simulation import Simulation, simulate
from app.sources import SOURCES, DataChoice
from fl_core.family import ALGORITHMS
from fl_core.models import MODELS
from fl_core.plan import Plan
from fl_core.schedule import FORMS, parse_schedule
from mammofed.errors import BadSetting


def command(
    out: Annotated[Path, typer.Option(help="Folder for result.json, model.safetensors and the state.")],
    algorithm: Annotated[str, typer.Option(help=f"One of: {', '.join(ALGORITHMS)}.")] = "bn-scaffold-std",
    data: Annotated[str, typer.Option(help=f"One of: {', '.join(SOURCES)}.")] = "synthetic",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data's files (mnist: its IDX files).")
    ] = None,
    model: Annotated[str, typer.Option(help=f"One of: {', '.join(MODELS)}.")] = "densenet-small",
    site: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH[,style=sigmoid:C:W]: a site's patch store or folder by class; repeatable."),
    ] = None,
    test: Annotated[str | None, typer.Option(help="Test patches for all --site; by default their own.")] = None,
    sites: Annotated[int, typer.Option(help="Number of sites.")] = 2,
    skew: Annotated[float, typer.Option(help="p: style skew of synthetic data, label skew of mnist.")] = 1.0,
    image_size: Annotated[int, typer.Option(help="Pixels a side of synthetic patches.")] = 64,
    patches: Annotated[int, typer.Option(help="Synthetic patches a site, and of the shared test set.")] = 2000,
    rounds: Annotated[int, typer.Option(help="R, the number of rounds.")] = 20,
    local_steps: Annotated[int, typer.Option(help="E, the steps of a site in a round.")] = 10,
    batch: Annotated[int, typer.Option(help="B, the patches of a site in a step.")] = 32,
    lr: Annotated[float, typer.Option(help="γ, the learning rate.")] = 0.05,
    schedule: Annotated[str, typer.Option(help=f"Of the learning rate: {FORMS}.")] = "constant",
    warmup: Annotated[int, typer.Option(help="Iterations over which the rate rises linearly.")] = 0,
    momentum: Annotated[float, typer.Option(help="Of SGD; refused by the SCAFFOLD rows.")] = 0.0,
    variance_floor: Annotated[float, typer.Option(help="σ²_ths, where bn-scaffold clips the variance.")] = 1e-2,
    freeze_from: Annotated[
        int | None, typer.Option(help="T* of fixbn; by default half of all iterations.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of data, initial weights and order.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda[:n] or mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="fp32, bf16 or fp16.")] = "fp32",
    channels_last: Annotated[bool, typer.Option(help="Memory format of images; the faster one.")] = True,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that train sites side by side; 0: in turn; by default as cores allow."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Of torch at each site; by default cores / workers.")] = None,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between evaluations; the last is always one.")] = 1,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples for each interval.")] = 2000,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that the folder holds.")] = False,
) -> None:
    """Train a federation on this machine, with any algorithm of the table."""
    crew = crew_size(algorithm, len(site or ()) or sites) if workers is None else workers
    plan = Plan(
        algorithm=algorithm,
        model=model,
        schedule=parse_schedule(schedule, lr, warmup),
        rounds=rounds,
        local_steps=local_steps,
        batch=batch,
        momentum=momentum,
        variance_floor=variance_floor,
        freeze_from=freeze_from,
        evaluate_every=evaluate_every,
        seed=seed,
        device=device,
        precision=precision,
        channels_last=channels_last,
        threads=threads or max(1, cores() // max(1, crew)),
    )
    folder = str(data_dir) if data_dir else None
    choice = DataChoice(data, folder, sites, skew, image_size, patches, seed, tuple(site or ()), test)
    simulation = Simulation(plan, choice, out, crew, resamples)
    if resume:
        check_begun(simulation)
    with stoppable(partial(where_it_stopped, simulation)), Watching(plan) as watching:
        result = simulate(simulation, resume, watching.moment, watching.step)
    watching.say_result(result, out)


def check_begun(simulation: Simulation) -> None:
    """Refuse to go on with nothing, and say it where nothing is left to train."""
    if not simulation.committed:
        raise BadSetting(f"{simulation.out} holds no run to go on with: correct --out, or leave --resume out")
    if simulation.committed == simulation.plan.rounds:
        typer.echo(f"{simulation.out} is finished already: all rounds are trained")


def where_it_stopped(simulation: Simulation) -> str:
    """The last round that is kept, and how to go on from it."""
    if not simulation.committed:
        return "Stopped before the first round was over; the same command starts anew."
    rounds = f"round {simulation.committed} of {simulation.plan.rounds}"
    return f"Stopped after {rounds}; the same command with --resume goes on."


def crew_size(algorithm: str, sites: int) -> int:
    """Worker processes by default: one a site as far as the cores go; one a site anyway where they must meet."""
    row = ALGORITHMS.get(algorithm)
    if row is None or row.pooled or sites < 2:
        return 0
    return sites if row.meets_layerwise else min(sites, cores()) if cores() > 1 else 0


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
