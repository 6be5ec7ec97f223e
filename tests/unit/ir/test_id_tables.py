"""An input that is looked up in one table as it is has that table's rows; of any other nothing is said."""

import pytest
import torch
from staged_onnx import read
from torch import nn

from heterps_compile.api import read_model
from heterps_compile.ir.id_tables import id_tables


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Gather(a, x)", {"x": 5}),
        ("i = Cast<to = 6>(x) j = Unsqueeze(i, one) k = Squeeze(j, one) y = Gather(a, k)", {"x": 5}),
        ("p = Gather(a, x) q = Gather(b, x) y = Concat<axis = 1>(p, q)", {"x": 5}),
        ("p = Gather(a, x) q = Gather(c, x) y = Add(p, q)", {}),  # of two sizes
        ("i = Add(x, one) y = Gather(a, i)", {}),  # computed
        ("p = Gather(a, x) f = Cast<to = 1>(x) g = Unsqueeze(f, one) y = Mul(p, g)", {}),  # a number too
        ("i = Slice(x, one, four) y = Gather(a, i)", {}),  # a part
        ("y = Gather<axis = 1>(b, x)", {}),  # columns
    ],
)
def test_onnx(body: str, found: dict[str, int]) -> None:
    text = f"""g (int64[N] x) => (float[n, m] y)
        <float[5, 2] a = {{{", ".join("1" * 10)}}}, float[5, 3] b = {{{", ".join("1" * 15)}}},
         float[9, 2] c = {{{", ".join("1" * 18)}}}, int64[1] one = {{1}}, int64[1] four = {{4}}> {{ {body} }}"""
    assert id_tables(read(text, batch=4)) == found


class Bags(nn.Module):
    """A table of single ids, bags, and columns that are taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.bag, self.apart = nn.Embedding(7, 2), nn.EmbeddingBag(8, 2), nn.Embedding(9, 2)

    def forward(self, user: torch.Tensor, tags: torch.Tensor, many: torch.Tensor) -> torch.Tensor:
        return self.one(user.long()) + self.bag(tags) + self.apart(many[:, 0])


def test_pytorch() -> None:
    given = (torch.zeros(3, dtype=torch.int32), torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 2).long())
    assert id_tables(read_model(Bags(), given, None)) == {"user": 7}
