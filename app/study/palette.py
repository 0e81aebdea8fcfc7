"""Algorithm → its colour, marker and dash in every figure.

Colours are those of Okabe and Ito (2008) and of Tol's muted scheme, told apart under the usual colour-vision
deficiencies; the marker and the dash say the same again, for sixteen rows and for print in grey.
"""

from dataclasses import dataclass, replace

from app.study.plan import Row


@dataclass(frozen=True)
class Mark:
    """How a row is drawn."""

    colour: str
    marker: str
    dash: str = "-"


MARKS: dict[str, Mark] = {
    "centralized": Mark("#000000", "s"),
    "local": Mark("#8C8C8C", "P"),
    "fedavg": Mark("#E69F00", "o"),
    "fedbn": Mark("#999933", "<"),
    "silobn": Mark("#117733", ">"),
    "fixbn": Mark("#CC79A7", "p"),
    "fedtan": Mark("#009E73", "h"),
    "scaffold-1": Mark("#88CCEE", "^", "--"),
    "scaffold": Mark("#56B4E9", "^"),
    "fedbn+scaffold": Mark("#C8B55A", "<", "--"),
    "silobn+scaffold": Mark("#332288", ">", "--"),
    "fixbn+scaffold": Mark("#AA4499", "p", "--"),
    "bn-scaffold-1": Mark("#882255", "v", "--"),
    "bn-scaffold": Mark("#D55E00", "v"),
    "bn-std": Mark("#44AA99", "d", "--"),
    "bn-scaffold-std": Mark("#0072B2", "D"),
}


def mark_of(row: Row) -> Mark:
    """The algorithm's mark; with settings of its own the row keeps the colour and is dotted."""
    mark = MARKS[row.algorithm]
    return replace(mark, dash=":") if row.changes else mark
