"""Models with which the strategies are compared. Inputs are batches of 8 numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laconic import models


class FunctionalDropout(nn.Module):
    """Dropout called as a function, the way that a search for nn.Dropout modules would miss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(F.dropout(inputs, 0.5, self.training) + 0.1 * torch.randn_like(inputs))


class RecurrentDropout(nn.Module):
    """Dropout inside a recurrent layer, which torch draws out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.recurrent(inputs.unsqueeze(1))[0][:, -1])


BUILDERS = {
    "linear": lambda: nn.Linear(8, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.4), nn.Linear(16, 3)),
    "alpha dropout": lambda: nn.Sequential(nn.Linear(8, 16), nn.SELU(), nn.AlphaDropout(0.4), nn.Linear(16, 3)),
    "functional dropout": FunctionalDropout,
    "layer norm": lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
    "unused parameter": lambda: nn.ModuleDict({"used": nn.Linear(8, 3), "unused": nn.Linear(2, 2)}),
}


# The others' batches of 8 numbers, as one image.
BUILDERS["transformer"] = lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 4)), models.build("vit:1x8,2", (1, 2, 4), 3))
# Dropout inside torch's attention.
BUILDERS["encoder layer"] = lambda: nn.Sequential(
    nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 8, 0.3, batch_first=True), nn.Flatten(), nn.Linear(8, 3)
)


class Twice(nn.Module):
    """One layer that is used twice, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.square, self.idle = nn.Linear(8, 6, bias=False), nn.Linear(6, 6), nn.Linear(2, 2)
        self.last = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.square(torch.relu(self.square(self.first(inputs))))))


class Centered(nn.Module):
    """Examples of a batch that depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs - inputs.mean(0))


class Tied(nn.Module):
    """A layer whose weight is also used without the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(F.linear(self.layer(inputs), self.layer.weight.t()))


class Shared(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.second.weight = self.layer.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.layer(inputs)))))


class Asking(nn.Module):
    """A model that decides by what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs if inputs.sum() < 1e9 else inputs * 2)


class Recurrent(nn.Module):
    """A GRU on a sequence of tokens, whose table is used a second time, for a second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.recurrent = nn.Embedding(9, 5), nn.GRU(5, 32, batch_first=True)
        self.second, self.layer = nn.GRU(32, 64, batch_first=True), nn.Linear(32, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = (3 * inputs.abs()).long().clamp(max=8)
        states, last = self.recurrent(self.table(tokens))
        return self.layer(self.second(states)[0][:, -1, :32] + self.table(tokens[:, :2]).sum((1, 2))[:, None] + last[0])


class Sequences(nn.Module):
    """A recurrent layer on four pairs of numbers."""

    def __init__(self, recurrent: nn.RNNBase) -> None:
        super().__init__()
        self.recurrent, self.layer = recurrent, nn.Linear(recurrent.hidden_size, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.recurrent(inputs.view(-1, 4, 2))[0][:, -1])


class MakesTensors(nn.Module):
    """A model that cannot run on the device `meta`, because it makes a tensor on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(torch.tanh(inputs) * torch.arange(8.0))


STACKED = {
    "linear": lambda: nn.Linear(8, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)),
    "twice": Twice,
    "no bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(8, 7, bias=False), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)
    ),
    "tanh": lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)),
    "recurrent": Recurrent,
}
BATCHED = [name for name in BUILDERS if name != "batch norm"]
"""What vmap takes: batch norm is refused there."""
