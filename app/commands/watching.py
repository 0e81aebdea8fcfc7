"""Rounds as they are committed → a progress bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.commands.shown import HEADLINES, shown
from fl_core.plan import Plan
from fl_core.rounds import Moment


class Watching:
    """What a person sees while a run trains."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.console = Console(file=sys.stdout, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds, left:"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(plan.algorithm, total=plan.rounds)

    def __enter__(self) -> "Watching":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def step(self, site: str, steps: int) -> None:
        """A site has done so many steps of the round."""
        self.bar.update(self.task, description=f"{self.plan.algorithm} · {site} {steps}/{self.plan.local_steps}")

    def moment(self, moment: Moment) -> None:
        """A round is committed."""
        self.bar.update(self.task, completed=moment.server.round)
        self.console.print(round_line(self.plan, moment.record), soft_wrap=True)

    def say_result(self, result: Mapping[str, Any], out: Path) -> None:
        """The final table, and where the files lie."""
        final = result["final"]
        table = Table("metric", "value", "95 % interval", title=f"{self.plan.algorithm}, {self.plan.model}")
        for key, name in HEADLINES.items():
            table.add_row(name, shown(final[key]["value"]), interval(final[key]))
        self.console.print(table)
        self.console.print(f"written: {out / 'result.json'}, {out / 'model.safetensors'}", soft_wrap=True)


def interval(metric: Mapping[str, float | None]) -> str:
    """Both bounds, or what stands for a metric that is not defined."""
    return shown(None) if metric["low"] is None else f"{shown(metric['low'])} – {shown(metric['high'])}"


def round_line(plan: Plan, record: Mapping[str, Any]) -> str:
    """One line a round."""
    line = f"round {record['round']}/{plan.rounds}  loss {record['loss']:.4f}  {record['seconds']:.1f} s"
    if record["test"]:
        line += "".join(f"  {name} {shown(record['test'][key]['value'])}" for key, name in HEADLINES.items())
    return line
