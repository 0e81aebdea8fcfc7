"""`python -m benchmarks [NAME ...]`: each bench_NAME.py → a table of ratios, and results/speed.json."""

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.provenance import provenance
from benchmarks.ratio import Ratio

HERE = Path(__file__).parent


def chosen(only: list[str]) -> list[str]:
    """The names of all benchmarks, or of those asked for."""
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    return [name for name in names if not only or name in only]


def show(ratios: list[Ratio]) -> None:
    """Print the table: what, ratio, bound, verdict."""
    table = Table("benchmark", "ratio", "bound", "holds", "detail")
    for ratio in ratios:
        table.add_row(ratio.name, f"{ratio.value:.3f}", ratio.bound, "yes" if ratio.holds else "NO", ratio.detail)
    Console(width=160).print(table)


def keep(name: str, ratios: list[Ratio]) -> None:
    """Put a benchmark's ratios, and the code that gave them, in place of its last ones."""
    path = HERE / "results" / "speed.json"
    path.parent.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    measured = [{**asdict(ratio), "holds": ratio.holds} for ratio in ratios]
    kept[name] = {"command": f"python -m benchmarks {name}", **provenance(), "ratios": measured}
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Measure one after the other, show and keep; exit 1 where a bound does not hold."""
    held = True
    for name in chosen(sys.argv[1:]):
        ratios = importlib.import_module(f"benchmarks.bench_{name}").measure()
        show(ratios)
        keep(name, ratios)
        held = held and all(ratio.holds for ratio in ratios)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
