"""The backbone ``table``: embeddings of categories beside numbers, then linear layers."""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from mtlkit.architectures.backbones import register_backbone
from mtlkit.architectures.heads import Norm, layer_sizes, make_mlp
from mtlkit.config import Count, Ge, Lt
from mtlkit.errors import SpecError, UsageError


class TableEmbedding(nn.Module):
    """Embed the codes of categories: (B, numbers + C) to (B, numbers + C * embedding).

    All columns share one embedding matrix, in which each has its own rows, for a single lookup. The
    first row of a column, for unknown words, is initially zero, the mean of the others.

    Args:
        numbers: how many inputs are numbers; they come first.
        categories: number of codes of each of the C category columns.
        embedding: size of an embedding.

    Example:
        >>> embed = TableEmbedding(numbers=2, categories=[3, 5], embedding=4)
        >>> embed(torch.tensor([[0.5, -1.0, 2, 4]])).shape
        torch.Size([1, 10])
    """

    offsets: Tensor
    last: Tensor

    def __init__(self, numbers: int, categories: Sequence[int], embedding: int) -> None:
        super().__init__()
        if not numbers and not categories:
            raise SpecError(
                "backbone table needs the sizes of its inputs: numbers=N, and categories=[number of "
                "codes per column]. A data set table fills them in: "
                "load_dataset(...).complete_architecture('hard_sharing(backbone=table(256, 256))')"
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
        """Return the numbers, then the embeddings.

        Raises:
            UsageError: for a code that its column does not have; under ``torch.compile`` and in
                exported networks the lookup itself fails.
        """
        if self.table is None:
            return x
        codes = x[:, self.numbers :].long()  # (B, C)
        if codes.shape[1] != len(self.last):
            raise UsageError(
                f"the backbone table reads {self.numbers} numbers and {len(self.last)} codes of "
                f"categories per row, and a row has {x.shape[1]} values; encode rows with the "
                "preprocessing that this network was trained with"
            )
        known = (codes >= 0) & (codes <= self.last)
        # an invalid code must not become a row of the next column
        rows = torch.where(known, codes + self.offsets, self.table.num_embeddings)
        try:
            embedded = self.table(rows).flatten(1)
        except IndexError:
            column = int((~known).any(0).nonzero()[0])
            raise UsageError(
                f"category column {column} has the codes 0 to {int(self.last[column])}, not "
                f"{int(codes[:, column][~known[:, column]][0])}; encode rows with the preprocessing "
                "that this network was trained with, where 0 is an unknown category"
            ) from None
        return torch.cat([x[:, : self.numbers].to(embedded.dtype), embedded], dim=1)


@register_backbone("table")
def _table(
    *hidden_sizes: int,
    hidden: int | Sequence[int] = (),
    numbers: Annotated[int, Ge(0)] = 0,
    categories: Sequence[Count] = (),
    embedding: Count = 8,
    norm: Norm = "none",
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
) -> nn.Module:
    """Build embeddings and linear layers: ``table(256, 256, embedding=16, norm=batch, dropout=0.1)``.

    The data set fills in ``numbers`` and ``categories``; without sizes of layers, the output is the
    embeddings.
    """
    embed = TableEmbedding(numbers, categories, embedding)
    sizes = layer_sizes(hidden_sizes, hidden)
    if not sizes:
        return embed
    return nn.Sequential(
        embed, *make_mlp([embed.num_features, *sizes], norm=norm, dropout=dropout, last=True)
    )
