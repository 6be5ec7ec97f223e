"""Nodes of ``com.microsoft`` and ``ai.onnx.ml`` as exporters and ONNX Runtime's own tools write them, in every form.

ONNX has no node tests of these; ONNX Runtime is the oracle. A case is one node on random inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

_ort: Any = onnxruntime

Array = NDArray[Any]
Run = Callable[[onnx.ModelProto, Sequence[Array]], list[Array]]


@dataclass(frozen=True, slots=True)
class Case:
    """One node.

    Attributes:
        op: Of the node.
        domain: Of the op.
        inputs: Arrays by their places, None for an absent one.
        attributes: Of the node.
        outputs: Which outputs it has; "" for one that is left out.
        constants: Places of inputs that are initialisers.
        steps: By how many units of a quantised output backends may differ from ONNX Runtime.
        opset: Of ``ai.onnx.ml``.
    """

    op: str
    domain: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    constants: frozenset[int] = frozenset()
    steps: int = 0
    opset: int = 3

    def model(self) -> onnx.ModelProto:
        """Return the model of the node alone."""
        names = ["" if array is None else f"x{i}" for i, array in enumerate(self.inputs)]
        node = onnx.helper.make_node(self.op, names, list(self.outputs), "the node", domain=self.domain)
        for name, value in self.attributes.items():
            node.attribute.append(onnx.helper.make_attribute(name, value))
        given, held = [], []
        for i, array in enumerate(self.inputs):
            if array is None:
                continue
            if i in self.constants:
                held.append(onnx.numpy_helper.from_array(array, names[i]))
            else:
                number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                given.append(onnx.helper.make_tensor_value_info(names[i], number, array.shape))
        results = [onnx.ValueInfoProto(name=name) for name in self.outputs if name]
        graph = onnx.helper.make_graph([node], "one node", given, results, held)
        opsets = [("", 18), ("com.microsoft", 1), ("ai.onnx.ml", self.opset)]
        made = onnx.helper.make_model(
            graph, ir_version=9, opset_imports=[onnx.helper.make_opsetid(*opset) for opset in opsets]
        )
        session = _session(made)
        for value, found in zip(made.graph.output, session.get_outputs(), strict=True):
            number = _NUMBERS[found.type]
            shape = [dim if isinstance(dim, int) else None for dim in found.shape]
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, number, shape or None))
        return made

    def fed(self) -> list[Array]:
        """Return the arrays of the model's inputs, in order."""
        return [array for i, array in enumerate(self.inputs) if array is not None and i not in self.constants]


_NUMBERS = {
    "tensor(float)": 1, "tensor(uint8)": 2, "tensor(int8)": 3, "tensor(int32)": 6, "tensor(int64)": 7,
    "tensor(bool)": 9, "tensor(double)": 11,
}  # fmt: skip


def _session(model: onnx.ModelProto) -> Any:
    options = _ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data: Any = model
    return _ort.InferenceSession(data.SerializeToString(), options, providers=["CPUExecutionProvider"])


def fault(case: Case, run: Run) -> str:
    """Return what is wrong with a backend's results beside those of ONNX Runtime, or ""."""
    model = case.model()
    names = [value.name for value in model.graph.input]
    expected = _session(model).run(None, dict(zip(names, case.fed(), strict=True)))
    for i, (ours, theirs) in enumerate(zip(run(model, case.fed()), expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"output {i}: {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        if theirs.dtype.kind in "iu":
            wrong = np.abs(ours.astype(np.int64) - theirs.astype(np.int64)).max(initial=0)
            if wrong > case.steps:
                return f"output {i}: {wrong} units off"
        elif not np.allclose(ours, theirs, rtol=2e-5, atol=2e-5, equal_nan=True):
            return f"output {i}: differs by {np.nanmax(np.abs(ours - theirs)):.3g}"
    return ""


MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"


class _Draw:
    """Draws inputs from one seed."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(15)

    def floats(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def whole(self, most: int, *shape: int, dtype: Any = np.int32) -> Array:
        return np.asarray(self.rng.integers(0, most, shape), dtype)

    def quantised(self, *shape: int, dtype: Any = np.uint8) -> tuple[Array, Array, Array]:
        limits = np.iinfo(dtype)
        values = np.asarray(self.rng.integers(limits.min, limits.max + 1, shape), dtype)
        scale = np.asarray(self.rng.uniform(0.01, 0.05), np.float32)
        return values, scale, np.asarray(self.rng.integers(limits.min, limits.max + 1), dtype)


@cache
def contrib_cases() -> tuple[Case, ...]:
    """Return the nodes of ``com.microsoft``."""
    draw = _Draw()
    f, w, q = draw.floats, draw.whole, draw.quantised
    made: list[Case] = []

    def add(
        op: str, *inputs: Array | None, outputs: tuple[str, ...] = ("y",), steps: int = 0, **attributes: Any
    ) -> None:
        made.append(Case(op, MICROSOFT, inputs, attributes, outputs, steps=steps))

    for op in ("Gelu", "QuickGelu", "FastGelu"):
        add(op, f(2, 5))
    add("QuickGelu", f(2, 5), alpha=0.7)
    add("FastGelu", f(2, 5), f(5))
    add("BiasGelu", f(2, 5), f(5))
    add("FusedMatMul", f(2, 3, 4), f(2, 4, 5), alpha=0.5)
    add("FusedMatMul", f(2, 4, 3), f(2, 4, 5), transA=1)
    add("FusedMatMul", f(2, 3, 4), f(2, 5, 4), transB=1, alpha=2.0)
    add("FusedMatMul", f(3, 2, 4), f(2, 4, 5), transBatchA=1)
    add("FusedMatMul", f(4, 2, 3), f(5, 2, 4), transA=1, transB=1, transBatchA=1, transBatchB=1)
    add("FusedMatMul", f(4), f(4, 5))
    add("FusedMatMul", f(3, 4), f(4), transA=0, alpha=0.25)
    add("TransposeMatMul", f(2, 4, 3), f(2, 4, 5), transA=1)
    for activation in ("Relu", "LeakyRelu", "Tanh", "Sigmoid"):
        more = {"activation_alpha": 0.2} if activation == "LeakyRelu" else {}
        add("FusedGemm", f(3, 4), f(4, 5), f(5), alpha=0.5, beta=2.0, activation=activation, **more)
        parameters = {"activation_params": [0.2]} if activation == "LeakyRelu" else {}
        add("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), activation=activation, pads=[1, 1, 1, 1], **parameters)
    add("FusedGemm", f(4, 3), f(5, 4), None, transA=1, transB=1, activation="Relu")
    add("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), f(1, 3, 3, 3), activation="Relu")
    add("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), activation="Clip", activation_params=[-0.5, 0.5], strides=[2, 2])
    add("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), activation="HardSigmoid", activation_params=[0.3, 0.4])
    for op, gains in (("SkipLayerNormalization", 2), ("SkipSimplifiedLayerNormalization", 1)):
        given = [f(8) for _ in range(gains)]
        add(op, f(2, 3, 8), f(2, 3, 8), *given, epsilon=1e-5)
        add(op, f(2, 3, 8), f(2, 3, 8), *given, f(8), outputs=("y", "", "", "sum"))
        add(op, f(2, 3, 8), f(1, 3, 8), *given)
        add(op, f(2, 3, 8), f(3, 8), *given)
    made.append(Case("SimplifiedLayerNormalization", "", (f(2, 3, 8), f(8)), {"axis": -1, "epsilon": 1e-6}))
    ids, segments = w(9, 2, 4), w(2, 2, 4)
    tables = (f(9, 8), f(6, 8), f(2, 8))
    add("EmbedLayerNormalization", ids, segments, *tables, f(8), f(8), outputs=("y", "lengths"))
    add(
        "EmbedLayerNormalization", ids, segments, *tables, f(8), f(8), w(2, 2, 4), w(6, 2, 4),
        outputs=("y", "lengths", "sum"),
    )  # fmt: skip
    add("EmbedLayerNormalization", ids, None, *tables[:2], None, f(8), f(8), outputs=("y", "lengths"), epsilon=1e-3)
    _add_attention(add, f, w)
    _add_quantised(add, f, w, q)
    return tuple(made)


def _add_attention(add: Any, f: Any, w: Any) -> None:
    x, weights, bias = f(2, 4, 8), f(8, 24), f(24)
    ends = np.asarray([3, 4], np.int32)
    both = np.asarray([3, 4, 1, 0], np.int32)
    rows = np.asarray([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
    square = np.asarray(np.tril(np.ones((2, 4, 4))), np.int32)
    for mask in (None, ends, both, rows, square):
        add("Attention", x, weights, bias, mask, num_heads=2)
    add("Attention", x, weights, bias, rows, num_heads=2, unidirectional=1, mask_filter_value=-3.0)
    add("Attention", x, weights, bias, None, None, f(2, 2, 4, 4), num_heads=2, scale=0.3)
    add("Attention", x, f(8, 20), f(20), num_heads=2, qkv_hidden_sizes=[8, 8, 4])
    longer = np.asarray([[1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], np.int32)
    for mask in (None, longer):
        add(
            "Attention", x, weights, bias, mask, f(2, 2, 2, 3, 4), num_heads=2, unidirectional=1,
            outputs=("y", "present"),
        )  # fmt: skip
    q, k, v = f(2, 4, 8), f(2, 5, 8), f(2, 5, 8)
    add("MultiHeadAttention", q, k, v, num_heads=2)
    add("MultiHeadAttention", q, k, f(2, 5, 12), num_heads=2, scale=0.2)
    add("MultiHeadAttention", q, k, v, f(24), num_heads=2)
    add("MultiHeadAttention", q, k, v, None, np.asarray([[1, 1, 1, 0, 0], [1] * 5], np.int32), num_heads=2)
    add("MultiHeadAttention", q, k, v, None, np.asarray([3, 5], np.int32), num_heads=2)
    add("MultiHeadAttention", q, k, v, None, None, f(1, 2, 4, 5), num_heads=2)
    add("MultiHeadAttention", q, f(2, 2, 5, 4), f(2, 2, 5, 4), num_heads=2)
    add(
        "MultiHeadAttention", q, f(2, 4, 8), f(2, 4, 8), None, None, None, f(2, 2, 3, 4), f(2, 2, 3, 4), num_heads=2,
        outputs=("y", "k", "v"), unidirectional=1,
    )  # fmt: skip
    cos, sin = f(7, 2), f(7, 2)
    for interleaved in (0, 1):
        place, places = np.asarray([2], np.int64), w(7, 2, 4, dtype=np.int64)
        add("RotaryEmbedding", f(2, 4, 8), place, cos, sin, interleaved=interleaved)
        add("RotaryEmbedding", f(2, 3, 4, 4), places, cos, sin, interleaved=interleaved)
        add(
            "RotaryEmbedding", f(2, 4, 18), places, cos, sin, interleaved=interleaved, num_heads=3,
            rotary_embedding_dim=4,
        )  # fmt: skip


def _add_quantised(add: Any, f: Any, w: Any, q: Any) -> None:
    for dtype in (np.uint8, np.int8):
        a, b = q(2, 3, 4, dtype=dtype), q(2, 3, 4, dtype=dtype)
        out = q(1, dtype=dtype)[1:]
        for op in ("QLinearAdd", "QLinearMul"):
            add(op, *a, *b, *out, steps=1)
        add("QLinearSigmoid", *a, np.asarray(1 / 256, np.float32), out[1], steps=1)
        add("QLinearLeakyRelu", *a, *out, alpha=0.3, steps=1)
        image = q(1, 2, 6, 6, dtype=dtype)
        add("QLinearGlobalAveragePool", *image, *out, steps=1)
        add("QLinearAveragePool", *image, *out, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], steps=1)
        add("QLinearAveragePool", *image, *out, kernel_shape=[2, 3], count_include_pad=1, pads=[1, 1, 0, 1], steps=1)
        add("QLinearSoftmax", *a, np.asarray(1 / 256, np.float32), out[1], axis=-1, opset=13, steps=1)
        add("QLinearSoftmax", *a, np.asarray(1 / 256, np.float32), out[1], axis=1, opset=12, steps=1)
        add("QLinearConcat", *out, *a, *b, axis=1, steps=1)
        where = (w(2, 2, 3, 4, dtype=bool), *a, *b, *out)
        add("QLinearWhere", *where, steps=1)
        add("QuantizeLinear", f(3, 4), *out, steps=1)
        add("DequantizeLinear", *a)
    channels = (np.linspace(0.1, 0.4, 4, dtype=np.float32), np.asarray([1, 2, 3, 4], np.uint8))
    add("QuantizeLinear", f(3, 4), *channels, axis=1, steps=1)
    add("DequantizeLinear", w(256, 3, 4, dtype=np.uint8), *channels, axis=1)
    # Where a CPU has no VNNI, ONNX Runtime adds products of uint8 and int8 in pairs and cuts a sum at 16 bits; the sums
    # of factors of 7 bits fit
    left, (wide, *scaled) = q(3, 4), q(4, 5, dtype=np.int8)
    right = (wide >> 1, *scaled)
    add("MatMulIntegerToFloat", left[0], right[0], left[1], right[1], left[2], right[2])
    add("MatMulIntegerToFloat", left[0], right[0], left[1], right[1], left[2], None, f(5))
    scales = np.linspace(0.01, 0.05, 5, dtype=np.float32)
    add("MatMulIntegerToFloat", left[0], right[0], left[1], scales, left[2], w(5, 5, dtype=np.int8))
    add("DynamicQuantizeMatMul", f(3, 4), right[0], right[1], right[2], f(5))
    add("DynamicQuantizeMatMul", f(2, 3, 4), w(9, 4, 5, dtype=np.uint8), scales, w(5, 5, dtype=np.uint8))
    # weights of 7 bits, as above; up to 4 samples stay together, whatever the number of threads
    for direction, count, outputs in (("forward", 1, ("y",)), ("bidirectional", 2, ("y", "h", "c"))):
        whole = (w(128, count, size, 16, dtype=np.int8) - np.int8(64) for size in (5, 4))
        each = np.full(count, 0.01, np.float32), np.zeros(count, np.int8)
        rest = (None, f(count, 1, 4), f(count, 1, 4), None) if count == 2 else (None, None, None, None)
        about = {"hidden_size": 4, "direction": direction, "outputs": outputs}
        add("DynamicQuantizeLSTM", f(3, 1, 5), *whole, f(count, 32), *rest, *each, *each, **about)
    add("QGemm", *left, *right, alpha=0.5)
    turned = (*q(4, 3), right[0].T.copy(), *right[1:])
    add("QGemm", *turned, w(50, 5), *q(1)[1:], transA=1, transB=1, steps=1)
    add("QGemm", *left, right[0], scales, w(5, 5, dtype=np.int8), w(50, 5))
    for bits, zeros in ((4, None), (4, w(256, 5, 2, dtype=np.uint8)), (4, f(5, 3)), (8, None)):
        packed = w(256, 5, 3, 16 * bits // 8, dtype=np.uint8)
        shift = zeros if zeros is None or zeros.dtype == np.float32 else zeros.reshape(-1)
        add("MatMulNBits", f(2, 40), packed, f(5, 3).reshape(-1), shift, K=40, N=5, bits=bits, block_size=16)
    add("Trilu", f(4, 4), upper=0)


@cache
def ml_cases() -> tuple[Case, ...]:
    """Return the nodes of ``ai.onnx.ml``."""
    draw = _Draw()
    f, w = draw.floats, draw.whole
    made: list[Case] = []
    x = f(6, 4)

    def add(op: str, *inputs: Array, outputs: tuple[str, ...] = ("y",), opset: int = 3, **attributes: Any) -> None:
        made.append(Case(op, ML, inputs, attributes, outputs, opset=opset))

    both = ("label", "scores")
    for how in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"):
        three = {"coefficients": f(12).tolist(), "intercepts": f(3).tolist(), "post_transform": how}
        if how == "PROBIT":
            three["coefficients"], three["intercepts"] = [0.02] * 12, [0.3, 0.5, 0.6]
        add("LinearClassifier", x, classlabels_ints=[5, 7, 9], outputs=both, **three)
        add("LinearRegressor", x, targets=3, **three)
        if how != "PROBIT":
            add(
                "LinearClassifier", x, coefficients=f(4).tolist(), intercepts=[0.1], classlabels_ints=[0, 1],
                post_transform=how, outputs=both,
            )  # fmt: skip
            add("LinearRegressor", x, coefficients=f(4).tolist(), intercepts=[0.5], post_transform=how)
    add("LinearClassifier", w(5, 6, 4, dtype=np.int64), coefficients=f(8).tolist(), intercepts=[0.1, 0.2],
        classlabels_ints=[3, 4], outputs=both)  # fmt: skip
    add("LinearRegressor", x, coefficients=f(8).tolist(), targets=2)
    add("Scaler", x, offset=f(4).tolist(), scale=[1.0, 2.0, 0.5, 3.0])
    add("Scaler", w(9, 6, 4, dtype=np.int64), offset=[1.0], scale=[0.5])
    rows = np.concatenate([x, np.zeros((1, 4), np.float32)])
    for norm in ("L1", "L2", "MAX"):
        add("Normalizer", rows, norm=norm)
    holes = np.where(x > 0.5, np.float32(np.nan), x)
    add("Imputer", holes, imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=float("nan"))
    add("Imputer", w(3, 6, 4, dtype=np.int64), imputed_value_int64s=[9], replaced_value_int64=2)
    add("LabelEncoder", w(9, 5, dtype=np.int64), keys_int64s=[4, 1, 7], values_floats=[0.5, 0.25, 3.0],
        default_float=-2.0, opset=2)  # fmt: skip
    keys = np.asarray([0.5, np.nan, 2.0, 9.0], np.float32)
    add("LabelEncoder", keys, keys_floats=[2.0, 0.5, float("nan")], values_int64s=[3, 4, 5], default_int64=8, opset=2)
    add("LabelEncoder", keys, keys_floats=[2.0, 0.5, float("nan")], values_int64s=[3, 4, 5], default_int64=8, opset=4)
    add("OneHotEncoder", w(6, 5, dtype=np.int64), cats_int64s=[2, 4, 5], zeros=1)
    add("FeatureVectorizer", f(3, 2), f(3, 1), inputdimensions=[2, 1])
    vectors = f(3, 4)
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        add("SVMRegressor", x, kernel_type=kernel, kernel_params=[0.3, 0.1, 2.0], n_supports=3, rho=[0.2],
            support_vectors=vectors.reshape(-1).tolist(), coefficients=[0.5, -0.25, 1.0])  # fmt: skip
    add("SVMRegressor", x, kernel_type="LINEAR", n_supports=0, rho=[0.2], coefficients=f(4).tolist(),
        kernel_params=[0.0, 0.0, 0.0])  # fmt: skip
    add("SVMRegressor", x, kernel_type="RBF", kernel_params=[0.3, 0.1, 2.0], n_supports=3, rho=[0.2], one_class=1,
        support_vectors=vectors.reshape(-1).tolist(), coefficients=[0.5, -0.25, -1.0])  # fmt: skip
    _add_forests(add, draw, x)
    return tuple(made)


def _forest(rng: np.random.Generator, kind: str, targets: Sequence[int], modes: Sequence[str]) -> dict[str, Any]:
    """Draw three trees of uneven depth, with a weight for every target at every leaf."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    nodes: dict[str, list[Any]] = {name: [] for name in names}
    nodes["missing_value_tracks_true"] = []
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, depth: int) -> int:
        place = len(nodes["nodeids"])
        number = sum(t == tree for t in nodes["treeids"])
        is_leaf = depth == 0 or (depth < 3 and rng.random() < 0.3)
        entry = (tree, number, int(rng.integers(4)), float(rng.standard_normal()), str(rng.choice(modes)), 0, 0)
        for name, value in zip(names, entry, strict=True):
            nodes[name].append(value)
        nodes["missing_value_tracks_true"].append(int(rng.integers(2)))
        if is_leaf:
            nodes["modes"][place] = "LEAF"
            for target in targets:
                for name, value in zip(leaves, (tree, number, target, float(rng.random())), strict=True):
                    leaves[name].append(value)
        else:
            nodes["truenodeids"][place] = grow(tree, depth - 1)
            nodes["falsenodeids"][place] = grow(tree, depth - 1)
        return number

    for tree in range(3):
        grow(tree, 3)
    return {f"nodes_{n}": v for n, v in nodes.items()} | {f"{kind}_{n}": v for n, v in leaves.items()}


def _add_forests(add: Any, draw: _Draw, x: Array) -> None:
    rng = draw.rng
    every = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
    holes = np.where(x > 1.0, np.float32(np.nan), x)
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        trees = _forest(rng, "target", [0, 1], every[:1])
        add("TreeEnsembleRegressor", holes, n_targets=2, aggregate_function=aggregate, **trees)
    add("TreeEnsembleRegressor", x, n_targets=1, base_values=[0.5], **_forest(rng, "target", [0], every))
    add("TreeEnsembleRegressor", x, n_targets=2, post_transform="SOFTMAX", **_forest(rng, "target", [0, 1], every[:2]))
    both = ("label", "scores")
    for how in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        trees = _forest(rng, "class", [0, 1, 2], every[:1])
        add(
            "TreeEnsembleClassifier", x, classlabels_int64s=[4, 5, 6], post_transform=how,
            base_values=[0.1, 0.2, -0.3], outputs=both, **trees,
        )  # fmt: skip
        add(
            "TreeEnsembleClassifier", x, classlabels_int64s=[4, 5], post_transform=how, outputs=both,
            **_forest(rng, "class", [0, 1], every[:1]),
        )  # fmt: skip
        for shift in (0.0, -0.5):
            one = _forest(rng, "class", [0], every[:1])
            one["class_weights"] = [weight / 3 + shift for weight in one["class_weights"]]
            add("TreeEnsembleClassifier", x, classlabels_int64s=[4, 5], post_transform=how, outputs=both, **one)
        one = _forest(rng, "class", [1], every[:1])
        add("TreeEnsembleClassifier", x, classlabels_int64s=[4, 5], post_transform=how, outputs=both, **one)
    one = _forest(rng, "class", [0], every[:1])
    add("TreeEnsembleClassifier", x, classlabels_int64s=[4, 5], base_values=[0.4], outputs=both, **one)
