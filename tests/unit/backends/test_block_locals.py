import pytest

from heterps_compile.backends.local_names import LocalNames
from heterps_compile.backends.torch.block_locals import BlockLocals
from heterps_compile.backends.torch.naming import MODULE_LEVEL

LAYER = "encoder.layer.0"
QUERY = [f"{LAYER}.attention.query.weight", f"{LAYER}.attention.query.bias"]


def written(reads: list[str], *others: str) -> list[str]:
    """Return the lines of a forward that reads these tensors one after the other."""
    blocks = BlockLocals(reads, {*reads, *others}, LocalNames(MODULE_LEVEL))
    return [line for name in reads for line in (*blocks.assign(name), blocks.write(name))]


def test_blocks_that_are_read_twice_get_a_local_before_the_first_read() -> None:
    assert written([*QUERY, f"{LAYER}.norm.weight"]) == [
        "layer_0 = self.encoder.layer[0]",
        "query = layer_0.attention.query",
        "query.weight",
        "query.bias",
        "layer_0.norm.weight",
    ]


@pytest.mark.parametrize(
    ("reads", "lines"),
    [
        (["encoder.norm.weight"], ["self.encoder.norm.weight"]),  # once
        (["0.weight", "0.bias"], ["self[0].weight", "self[0].bias"]),  # a step deep, where a local saves nothing
        (["weight", "weight"], ["self.weight", "self.weight"]),
        (["a.b.w", "a.b.w"], ["b = self.a.b", "b.w", "b.w"]),  # one tensor twice
        (["a.b.w", "a.c.w"], ["self.a.b.w", "self.a.c.w"]),
    ],
)
def test_what_saves_nothing_stays_as_it_is(reads: list[str], lines: list[str]) -> None:
    assert written(reads) == lines


def test_a_tensor_under_the_name_of_a_block_is_found_by_its_whole_name() -> None:
    # `a.b` is a tensor and a block at once
    assert written(["a.b.w", "a.b.v"], "a.b") == ["self.find('a.b.w')", "self.find('a.b.v')"]


def test_names_that_are_none_in_python_stay_literals() -> None:
    reads = ['x.we"ird\n.w', 'x.we"ird\n.forward', "x.self.w", "x.self.v"]
    lines = written(reads)
    assert lines == [
        "we_ird = self.x.at('we\"ird\\n')",
        "we_ird.w",
        "we_ird.at('forward')",
        "self_1 = self.x.self",
        "self_1.w",
        "self_1.v",
    ]
    for line in lines:
        compile(line, "a line", "exec")
