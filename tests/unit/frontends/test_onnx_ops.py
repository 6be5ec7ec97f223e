"""What an op is and what it costs: the formulas against numbers counted by hand."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from staged_onnx import parse, read

from heterps_compile.errors import GraphError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.onnx_ops import OPS
from heterps_compile.frontends.onnx_structure import RANDOM_OPS

# op on x and perhaps a weight or a second input, and what its node is and costs
COSTS = {
    "y = MatMul(x[2,3], w=[3,5])": ("gemm", 2 * 2 * 3 * 5),
    "y = MatMul(w=[5,2], x[2,3])": ("gemm", 2 * 5 * 2 * 3),
    "y = MatMul(x[7,2,3], z[7,3,5])": ("matmul", 7 * 2 * 2 * 3 * 5),
    "y = Gemm(x[2,3], w=[3,5])": ("gemm", 2 * 2 * 3 * 5),
    "y = Gemm<transB=1>(x[2,3], w=[5,3], b=[5])": ("gemm", 2 * 2 * 3 * 5 + 2 * 5),
    "y = Gemm<transA=1>(x[3,2], w=[3,5])": ("gemm", 2 * 2 * 3 * 5),
    "y = Conv(x[1,3,8,8], w=[4,3,3,3])": ("conv", 2 * 4 * 6 * 6 * 27),
    "y = Conv(x[1,3,8,8], w=[4,3,3,3], b=[4])": ("conv", 2 * 4 * 6 * 6 * 27 + 4 * 6 * 6),
    "y = Conv<group=4>(x[1,4,8,8], w=[4,1,3,3])": ("conv", 2 * 4 * 6 * 6 * 9),
    "y = ConvTranspose(x[1,3,4,4], w=[3,2,2,2])": ("conv", 2 * 3 * 16 * 2 * 4),
    'y = Einsum<equation="bij,bjk->bik">(x[7,2,3], z[7,3,5])': ("matmul", 7 * 2 * 2 * 3 * 5),
    'y = Einsum<equation="bi,io->bo">(x[2,3], w=[3,5])': ("gemm", 2 * 2 * 3 * 5),
    'y = Einsum<equation="ij->i">(x[2,3])': ("reduce", 6),
    'y = Einsum<equation="ij->ji">(x[2,3])': ("move", 6),
    "y = LSTM<hidden_size=5>(x[4,2,3], w=[1,20,3], r=[1,20,5])": ("recurrent", 4 * 2 * (2 * 4 * 5 * (3 + 5) + 80)),
    "y = GRU<hidden_size=5>(x[4,2,3], w=[1,15,3], r=[1,15,5])": ("recurrent", 4 * 2 * (2 * 3 * 5 * (3 + 5) + 60)),
    "y = Relu(x[2,3])": ("elementwise", 6),
    "y = Sigmoid(x[2,3])": ("elementwise", 24),
    "y = Add(x[2,3], z[3])": ("elementwise", 6),
    "y = Sum(x[2,3], z[2,3], v[2,3])": ("elementwise", 12),
    "y = Softmax(x[2,3])": ("softmax", 30),
    "y = LayerNormalization(x[2,3], w=[3])": ("norm", 42),
    "y = LRN<size=5>(x[1,3,2,2])": ("norm", 12 * 9),
    "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x[1,3,4,4])": ("pool", 12 * 4),
    "y = GlobalAveragePool(x[1,3,4,4])": ("pool", 48),
    "y = ReduceMean(x[2,3])": ("reduce", 6),
    "y = Transpose(x[2,3])": ("move", 0),
    "y = Concat<axis=0>(x[2,3], z[2,3])": ("move", 0),
    "y = Flatten(x[2,3])": ("view", 0),
    "y = Dropout(x[2,3])": ("view", 0),
    "y = Shape(x[2,3])": ("shape", 0),
    "y = Cast<to=10>(x[2,3])": ("move", 0),
    "y = Mish(x[2,3])": ("elementwise", 30),
}


def model_of(line: str) -> onnx.ModelProto:
    """Read ``y = Op<...>(x[2,3], w=[3,5])``: a shape makes an input, a shape behind a = a weight."""
    head, _, operands = line.rpartition("(")
    inputs, weights, names = [], {}, []
    for operand in operands.rstrip(")").split("], " if "], " in operands else "\0"):
        name, _, shape = operand.rstrip("]").partition("[")
        names.append(name.rstrip("="))
        if name.endswith("="):
            weights[names[-1]] = [int(dim) for dim in shape.split(",")]
        else:
            inputs.append(f"float[{shape}] {name}")
    model = parse(f"g ({', '.join(inputs)}) => (y) {{ {head}({', '.join(names)}) }}")
    for name, shape in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
    return model


@pytest.mark.parametrize(("line", "expected"), COSTS.items())
def test_kind_and_flops_are_those_counted_by_hand(line: str, expected: tuple[str, int]) -> None:
    (node,) = import_onnx(model_of(line)).nodes
    assert (node.kind.value, node.flops) == expected


def gather(table: np.ndarray) -> str:
    model = parse("g (int64[6] i) => (y) { y = Gather(t, i) }")
    model.graph.initializer.append(numpy_helper.from_array(table, "t"))
    return str(import_onnx(model).nodes[0].kind.value)


def test_a_gather_from_a_floating_matrix_is_an_embedding() -> None:
    assert gather(np.zeros((9, 4), np.float32)) == "embedding"


def test_a_gather_from_a_vector_or_from_integers_moves() -> None:
    assert (gather(np.zeros(9, np.float32)), gather(np.zeros((9, 4), np.int64))) == ("move", "move")


def test_a_gather_from_an_activation_moves() -> None:
    graph = read("g (float[9,4] x, int64[6] i) => (y) { y = Gather(x, i) }")
    assert graph.nodes[0].kind.value == "move"


def test_a_product_with_a_dequantized_weight_is_a_gemm() -> None:
    graph = read("""g (float[2,3] x) => (y) {
        q = Constant<value = int8[3,2] {1,2,3,4,5,6}>()
        scale = Constant<value = float {0.1}>()
        w = DequantizeLinear(q, scale)
        y = MatMul(x, w)
    }""")
    assert [(node.kind.value, node.flops) for node in graph.nodes] == [("gemm", 24)]


def test_attention_counts_both_products_and_the_softmax() -> None:
    text = "g (float[2,4,5,8] q, float[2,4,6,8] k, float[2,4,6,8] v) => (y) { y = Attention(q, k, v) }"
    (node,) = import_onnx(parse(text, opset=23)).nodes
    assert (node.kind.value, node.flops) == ("attention", 2 * (2 * 2 * 4 * 5 * 6 * 8) + 5 * 2 * 4 * 5 * 6)


def test_a_branch_costs_what_the_dearer_side_does() -> None:
    graph = read("""g (float[2,3] x, bool c) => (float[2,3] y) {
        y = If(c) <
            then_branch = t () => (float[2,3] a) { a = Relu(x) },
            else_branch = e () => (float[2,3] b) { i = Sigmoid(x) b = Neg(i) }
        >
    }""")
    assert [(node.kind.value, node.flops) for node in graph.nodes] == [("control", 30)]


LOOP = """g (float[2,3] x{input}) => (float[2,3] y) {{
    {limit}
    keep = Constant<value = bool {{1}}>()
    y = Loop(n, keep, x) <body = b (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] r) {{
        on = Identity(go)
        r = Relu(s)
    }}>
}}"""


def test_a_loop_costs_its_body_times_its_trips() -> None:
    graph = read(LOOP.format(input="", limit="n = Constant<value = int64 {7}>()"))
    assert [(node.kind.value, node.flops) for node in graph.nodes] == [("control", 42)]
    assert graph.source.notes == ()


def test_a_loop_of_unknown_length_counts_once_and_says_so() -> None:
    graph = read(LOOP.format(input=", int64 n", limit=""))
    assert graph.nodes[0].flops == 6
    assert graph.source.notes == ("counted once, since nobody knows how often it runs: the body of 1 node ('Loop_0')",)


def test_shapes_an_op_does_not_take_are_an_error() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = LSTM<hidden_size = 5>(x, w, r) }")
    for name in ("w", "r"):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 20, 5), np.float32), name))
    with pytest.raises(GraphError, match=r"'LSTM_0'.*LSTM"):
        import_onnx(model)


def test_an_op_that_no_row_names_is_other_and_costs_what_it_makes() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Normalizer(x) }", domains=["ai.onnx.ml"])
    assert [(n.op, n.kind.value, n.flops) for n in import_onnx(model).nodes] == [("ai.onnx.ml::Normalizer", "other", 6)]


def test_the_table_names_nearly_every_standard_op() -> None:
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == "" and not schema.deprecated}
    left = standard - set(OPS) - {"If", "Loop", "Scan", "SequenceMap"}
    assert len(standard & set(OPS)) > 180
    assert left == {
        "ImageDecoder",
        "RegexFullMatch",
        "StringConcat",
        "StringNormalizer",
        "StringSplit",
        "TfIdfVectorizer",
    }


def test_every_random_op_is_in_the_table_or_contributed() -> None:
    assert RANDOM_OPS - set(OPS) == {"Sampling"}
