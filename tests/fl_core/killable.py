"""A short run for processes that are killed on the way."""

from pathlib import Path

import torch
from torch import nn

from fl_core.checkpoint import FolderLedger
from fl_core.rounds import Federation, run_rounds
from tests.laws.toy import DIFFERENT, plan, tiny_net

ROUNDS = 25


def net() -> nn.Module:
    return tiny_net(torch.float32)


def train_tiny(folder: Path) -> None:
    """Train to the last round, from wherever the folder stands."""
    federation = Federation(plan("bn-scaffold-std", rounds=ROUNDS), net, DIFFERENT)
    for _ in run_rounds(federation, lambda evaluation: {}, FolderLedger(folder)):
        pass
