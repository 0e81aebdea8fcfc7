"""`mammofed algorithms`: the table of algorithms, with what each sends in a round."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fl_core.family import ALGORITHMS
from fl_core.models import MODELS, build_model
from fl_core.traffic import traffic


def command(
    model: Annotated[
        str, typer.Option(help=f"Whose tensors are counted; one of: {', '.join(MODELS)}.")
    ] = "densenet121",
) -> None:
    """Print every algorithm with its batch-norm policy and its bytes a round, each way and for each site."""
    network = build_model(model, channels=1, classes=5, seed=0)
    table = Table(
        Column("algorithm", no_wrap=True),
        "differs from fedavg",
        "batch normalisation",
        "sends",
        "bytes",
        title=model,
    )
    for row in ALGORITHMS.values():
        sent = traffic(row, network)
        table.add_row(row.name, row.differs, row.bn_policy, sent.formula, f"{sent.bytes:,}")
    console = Console()
    if not console.is_terminal:
        console.width = 180
    console.print(table)
    console.print(
        "|W| weights, |W_bn| those of batch-norm layers, |S| running statistics; one way, one site, one round"
    )
