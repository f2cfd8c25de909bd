"""A character-level language model."""

from __future__ import annotations

from torch import Tensor, nn

from laconic.models.shapes import Shape, wrong_shape


class CharacterGRU(nn.Module):
    """Embedding, one GRU layer, one linear layer: tokens [B, T] to logits [B, T, classes]."""

    def __init__(self, classes: int, hidden: int, embedding: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the next token at every position."""
        states, _ = self.gru(self.embedding(tokens))
        logits: Tensor = self.output(states)
        return logits


def char_gru(input_shape: Shape, classes: int, sizes: tuple[int, ...]) -> nn.Module:
    """Build a character-level language model. Tokens are int64 in [0, classes)."""
    if len(input_shape) != 1:
        raise wrong_shape("char_gru", input_shape, "a sequence length (one number) of int64 tokens")
    hidden, embedding = sizes
    return CharacterGRU(classes, hidden, embedding)
