"""A row of the table and a model → what a site sends in a round, in symbols and in bytes."""

from dataclasses import dataclass

from torch import nn

from fl_core.family import Algorithm
from fl_core.roles import roles
from fl_core.state import byte_size, without


@dataclass(frozen=True)
class Traffic:
    """One way, one site, one round; the server sends as much back."""

    formula: str  # in |W|, |W_bn| and |S|
    bytes: int
    exchanges: int  # messages each way: the model, and three for each layer where sites meet


def traffic(row: Algorithm, model: nn.Module) -> Traffic:
    """Count the tensors that the row lets out of a site."""
    parts, state = roles(model), {name: tensor.detach() for name, tensor in model.state_dict().items()}
    private = row.private(parts)
    shared = without(state, private)
    weights = {name: shared[name] for name in parts.parameters if name in shared}
    statistics = {name: state[name] for name in parts.statistics}
    counted = {
        "model": byte_size(shared),
        "c": byte_size(weights) if row.weight_grad else 0,
        "k": byte_size(statistics) if row.corrects_statistics else 0,
        "layers": 2 * byte_size(statistics) if row.meets_layerwise else 0,
    }
    if row.pooled:
        return Traffic("the data", 0, 0)
    layers = len(statistics) // 2 if row.meets_layerwise else 0
    formula = symbols(
        bool(weights), row, not private & set(parts.bn_parameters), not private & set(parts.statistics)
    )
    return Traffic(formula, sum(counted.values()), (1 if shared else 0) + 3 * layers)


def symbols(any_weight: bool, row: Algorithm, bn_weights: bool, statistics: bool) -> str:
    """The same count in the paper's symbols."""
    w = (1 + bool(row.weight_grad)) * any_weight
    s = statistics * any_weight + row.corrects_statistics + 2 * row.meets_layerwise
    of_weights = "|W|" if bn_weights else "(|W| − |W_bn|)"
    words = [times(w, of_weights), times(s, "|S|")]
    return " + ".join(word for word in words if word) or "nothing"


def times(count: int, symbol: str) -> str:
    """`2|W|`, `|W|` or nothing."""
    return "" if not count else symbol if count == 1 else f"{count}{symbol}"
