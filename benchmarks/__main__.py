"""`python -m benchmarks [NAME ...]`: each bench_NAME.py → a table of ratios, and results/speed.json."""

import importlib
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.ratio import Ratio

HERE = Path(__file__).parent


def measure_all(only: list[str]) -> list[Ratio]:
    """Run the `measure()` of each benchmark module, alone and in order."""
    names = sorted(path.stem for path in HERE.glob("bench_*.py"))
    chosen = [name for name in names if not only or name.removeprefix("bench_") in only]
    return [ratio for name in chosen for ratio in importlib.import_module(f"benchmarks.{name}").measure()]


def show(ratios: list[Ratio]) -> None:
    """Print the table: what, ratio, bound, verdict."""
    table = Table("benchmark", "ratio", "bound", "holds", "detail")
    for ratio in ratios:
        table.add_row(ratio.name, f"{ratio.value:.3f}", ratio.bound, "yes" if ratio.holds else "NO", ratio.detail)
    Console(width=160).print(table)


def main() -> None:
    """Measure, show, keep; exit 1 where a bound does not hold."""
    only = sys.argv[1:]
    ratios = measure_all(only)
    show(ratios)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    record = {
        "command": "make bench",
        "commit": commit.stdout.strip(),
        "machine": platform.processor() or platform.machine(),
        "ratios": [asdict(ratio) for ratio in ratios],
    }
    if not only:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "speed.json").write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(0 if all(ratio.holds for ratio in ratios) else 1)


if __name__ == "__main__":
    main()
