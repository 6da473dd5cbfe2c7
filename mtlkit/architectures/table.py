"""The backbone ``table``: embeddings of categories beside numbers, then linear layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mtlkit.architectures.backbones import register_backbone
from mtlkit.architectures.heads import layer_sizes, make_mlp
from mtlkit.errors import SpecError


class TableEmbedding(nn.Module):
    """(B, numbers + categories) to (B, numbers + categories * embedding).

    All columns share one embedding matrix, in which each has its own rows: one lookup for all. The row
    of unknown words, a column's first, starts at zero, the mean of the others.

    Args:
        numbers: how many inputs are numbers; they come first.
        categories: number of indices of each category column.
        embedding: size of an embedding.
    """

    offsets: Tensor
    last: Tensor

    def __init__(self, numbers: int, categories: Sequence[int], embedding: int) -> None:
        super().__init__()
        if numbers < 0 or any(size < 1 for size in categories) or numbers + len(categories) < 1:
            raise SpecError(
                "backbone table needs numbers=N, 0 or more, and categories=[sizes], each 1 or more, and "
                f"one input at least; not numbers={numbers}, categories={list(categories)}"
            )
        self.numbers = numbers
        self.num_features = numbers + len(categories) * embedding
        sizes = torch.tensor(list(categories), dtype=torch.long)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)
        self.register_buffer("last", sizes - 1, persistent=False)
        self.table: nn.Embedding | None = None
        if len(categories):
            self.table = nn.Embedding(int(sizes.sum()), embedding)
            nn.init.normal_(self.table.weight, std=embedding**-0.5)
            with torch.no_grad():
                self.table.weight[self.offsets] = 0

    def forward(self, x: Tensor) -> Tensor:
        """Numbers, then embeddings."""
        if self.table is None:
            return x
        codes = x[:, self.numbers :].long().clamp(min=0).minimum(self.last) + self.offsets  # (B, C)
        embedded = self.table(codes).flatten(1)
        return torch.cat([x[:, : self.numbers].to(embedded.dtype), embedded], dim=1)


@register_backbone("table")
def _table(
    *hidden_sizes: int,
    hidden: int | Sequence[int] = (),
    numbers: int = 0,
    categories: Sequence[int] = (),
    embedding: int = 8,
    norm: str = "none",
    dropout: float = 0.0,
) -> nn.Module:
    embed = TableEmbedding(numbers, categories, embedding)
    sizes = layer_sizes(hidden_sizes, hidden)
    if not sizes:
        return embed
    return nn.Sequential(
        embed, *make_mlp([embed.num_features, *sizes], norm=norm, dropout=dropout, last=True)
    )
