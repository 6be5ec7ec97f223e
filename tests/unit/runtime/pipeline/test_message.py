import pytest
import torch

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.message import Packing, ValueSpec, check_values, describe, packing_of_header

CPU = torch.device("cpu")
VALUES = [
    torch.arange(6.0).reshape(2, 3).requires_grad_(),
    torch.tensor([1, -2, 2**40]),
    None,
    torch.tensor([True, False]),
    7,
    0.1,
    True,
    torch.zeros(0, 4),
    torch.tensor(1.5, dtype=torch.bfloat16),
    torch.tensor([1 + 2j]),
]


def packing_of(values: list, wire: str = "float32") -> Packing:
    return Packing([describe(value, "v") for value in values], wire)


def through(values: list, wire: str = "float32") -> list:
    """Return values as they come out at the other end."""
    packing = packing_of(values, wire)
    sent, received = torch.empty(packing.size_bytes, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
    packing.pack(values, packing.views(sent))
    received = sent.clone()
    other = packing_of_header(packing.header(), len(values), "rank 0")
    return other.unpack(other.views(received), CPU)


def test_what_goes_in_comes_out():
    for ours, theirs in zip(through(VALUES), VALUES, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert (ours.dtype, ours.shape, ours.requires_grad) == (theirs.dtype, theirs.shape, theirs.requires_grad)
            assert torch.equal(ours, theirs)
        else:
            assert (type(ours), ours) == (type(theirs), theirs)


def test_what_wants_a_gradient_is_a_leaf_that_collects_it():
    (value,) = through([torch.ones(3).requires_grad_() * 2])
    (value * 3).sum().backward()
    assert value.grad.tolist() == [3, 3, 3]


def test_values_begin_at_multiples_of_64_bytes():
    packing = packing_of([torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64), torch.zeros(())])
    offsets = [view.storage_offset() * view.itemsize for view in packing.views(torch.empty(256, dtype=torch.uint8))]
    assert (offsets, packing.size_bytes) == ([0, 128, 192], 196)


@pytest.mark.parametrize(("wire", "error"), [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_a_narrow_wire_halves_float32_and_nothing_else(wire, error):
    values = [torch.linspace(-3, 3, 64), torch.linspace(-3, 3, 64, dtype=torch.float64), torch.arange(64)]
    assert packing_of(values, wire).size_bytes == packing_of(values).size_bytes - 2 * 64
    narrow, wide, whole = through(values, wire)
    assert narrow.dtype is torch.float32
    assert 0 < (narrow - values[0]).abs().max() / 3 < error
    assert torch.equal(wide, values[1])
    assert torch.equal(whole, values[2])


def test_a_single_value_is_sent_from_where_it_lies():
    value = torch.arange(12.0).reshape(3, 4)
    assert packing_of([value]).as_it_lies([value]).data_ptr() == value.data_ptr()
    assert packing_of([value.T]).as_it_lies([value.T]) is None
    assert packing_of([value], "float16").as_it_lies([value]) is None
    assert packing_of([value, value]).as_it_lies([value, value]) is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.zeros(3, 4), r"float32\[3, 4\].*float32\[2, 4\]"),
        (torch.zeros(2, 4, dtype=torch.float64), r"float64\[2, 4\].*float32\[2, 4\]"),
        (torch.zeros(2, 4).requires_grad_(), r"float32\[2, 4\] with a gradient.*float32\[2, 4\]"),
        (None, r"None.*float32\[2, 4\]"),
        (3, r"int\b.*float32\[2, 4\]"),
    ],
)
def test_another_shape_than_in_the_first_micro_batch_is_told(value, found):
    with pytest.raises(RunError, match=rf"'hidden'.*{found}"):
        check_values(packing_of([torch.zeros(2, 4)]), [value], ["hidden"])


@pytest.mark.parametrize("value", ["text", [1], torch.zeros(2, 2).to_sparse()])
def test_what_cannot_be_sent_is_refused(value):
    with pytest.raises(RunError, match="'odd'"):
        describe(value, "odd")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"wire": "float32", "values": [["tensor", "float99", [2], false]]}',
        b'{"wire": "float8", "values": [["tensor", "float32", [2], false]]}',
        b'{"wire": "float32", "values": [["object", "", [], false]]}',
        b'{"wire": "float32", "values": [["tensor", "float32", [-2], false]]}',
        b'{"wire": "float32", "values": [["tensor", "float32", ["a"], false]]}',
    ],
)
def test_a_header_that_is_none_is_refused(header):
    with pytest.raises(RunError, match=r"rank 3\b"):
        packing_of_header(header, 1, "rank 3")


def test_a_header_of_another_count_is_refused():
    header = Packing([ValueSpec("none")], "float32").header()
    with pytest.raises(RunError, match=r"rank 3\b.*\b1\b.*\b2\b"):
        packing_of_header(header, 2, "rank 3")
