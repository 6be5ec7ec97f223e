"""What a layer holds inside of it counts: arrays on the way to its constants, random numbers, what it reduces again."""

import pytest
from staged_onnx import parse

import heterps_compile
from heterps_compile.errors import InfeasibleError

ITEMS = 2**24  # 64 MiB of float32
REDUCED = "r = ReduceSum<keepdims = 0>(c) y = Add(x, r)"
DIMS = "<int64[1] dims = {ITEMS}, float[1] one = {1}, int64[1] times = {ITEMS}>"
MADE = {
    "ConstantOfShape": "c = ConstantOfShape(dims)",
    "Expand": "c = Expand(one, dims)",
    "Tile": "c = Tile(one, times)",
    "RandomNormal": "c = RandomNormal<shape = [ITEMS]>()",
    "RandomUniform": "c = RandomUniform<shape = [ITEMS]>()",
    "Expand of an input": "q = ReduceSum<keepdims = 0>(x) c = Expand(q, dims)",
}


def model(made: str, items: int) -> str:
    text = f"g (float[N, 4] x) => (float[N, 4] y) {DIMS} {{ {made} {REDUCED} }}"
    return text.replace("ITEMS", str(items))


@pytest.mark.parametrize("made", MADE)
def test_planned_memory_has_what_operators_make(made: str) -> None:
    compiled = heterps_compile.compile(parse(model(MADE[made], ITEMS)), batch=4, method="greedy", verify=False)
    (stage,) = compiled.plan.stages
    assert stage.memory is not None
    assert 2**26 <= stage.memory.total_bytes < 2**27


@pytest.mark.parametrize("made", ["RandomNormal", "RandomUniform", "Expand of an input"])
def test_what_no_type_holds_is_refused_before_it_is_made(made: str) -> None:
    with pytest.raises(InfeasibleError, match=r"1\.2 TiB"):
        heterps_compile.compile(parse(model(MADE[made], 2**40)), batch=4, method="greedy")
