"""What is stated of an ONNX op: its versions, their attributes and the defaults of these, and what it may be given.

ONNX's own ops and those of ``ai.onnx.ml`` are read from the schemas of the package ``onnx``. What ONNX Runtime adds is
declared here, as its schemas have it.

Left out: kind and FLOPs (``onnx_ops.py``); what computes an op (the backends' tables).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx

NEWEST_OPSET = 28
"""The newest opset of ONNX's own domain whose changes the compiler knows."""

NO_DEFAULT: Final = ...
"""Of an attribute that must be given, or whose absence is a case of its own."""

_ANY = 2**31 - 1
_MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What is stated of one version of an op.

    Attributes:
        since: The opset that brought it; it holds up to the next version.
        attributes: The default of every attribute, :data:`NO_DEFAULT` where it has none.
        max_inputs: How many inputs a node may have.
        is_withdrawn: Whether this opset took the op away.
    """

    since: int
    attributes: Mapping[str, Any]
    max_inputs: int
    is_withdrawn: bool = False


_NORM = {"axis": -1, "epsilon": 1e-05, "stash_type": 1}
_PRODUCT = {"alpha": 1.0, "transA": 0, "transB": 0}
_WINDOW = {"auto_pad": "NOTSET", "kernel_shape": ..., "pads": ..., "strides": ...}

_DECLARED: Mapping[tuple[str, str], tuple[int, Mapping[str, Any]]] = MappingProxyType({
    ("", "LayerNormalization"): (3, _NORM),
    ("", "SimplifiedLayerNormalization"): (2, _NORM),
    (_MICROSOFT, "Attention"): (7, {
        "do_rotary": ..., "mask_filter_value": ..., "num_heads": ..., "past_present_share_buffer": ...,
        "qkv_hidden_sizes": ..., "rotary_embedding_dim": ..., "scale": ..., "unidirectional": 0,
    }),
    (_MICROSOFT, "BiasGelu"): (2, {}),
    (_MICROSOFT, "DequantizeLinear"): (3, {"axis": ...}),
    (_MICROSOFT, "DynamicQuantizeLSTM"): (12, {
        "activation_alpha": ..., "activation_beta": ..., "activations": ..., "clip": ..., "direction": "forward",
        "hidden_size": ..., "input_forget": 0,
    }),
    (_MICROSOFT, "DynamicQuantizeMatMul"): (5, {}),
    (_MICROSOFT, "EmbedLayerNormalization"): (9, {"epsilon": 1e-12, "mask_index_type": ...}),
    (_MICROSOFT, "FastGelu"): (2, {}),
    (_MICROSOFT, "FusedConv"): (4, {
        **_WINDOW, "activation": ..., "activation_params": ..., "dilations": ..., "group": 1,
    }),
    (_MICROSOFT, "FusedGemm"): (3, {
        **_PRODUCT, "activation": ..., "activation_alpha": ..., "activation_beta": ..., "activation_gamma": ...,
        "beta": 1.0,
    }),
    (_MICROSOFT, "FusedMatMul"): (2, {**_PRODUCT, "transBatchA": 0, "transBatchB": 0}),
    (_MICROSOFT, "Gelu"): (1, {}),
    (_MICROSOFT, "MatMulIntegerToFloat"): (7, {}),
    (_MICROSOFT, "MatMulNBits"): (6, {
        "K": ..., "N": ..., "accuracy_level": 0, "bits": 4, "block_size": ..., "weight_prepacked": 0,
    }),
    (_MICROSOFT, "MultiHeadAttention"): (10, {
        "mask_filter_value": ..., "num_heads": ..., "scale": ..., "unidirectional": 0,
    }),
    (_MICROSOFT, "QGemm"): (9, _PRODUCT),
    (_MICROSOFT, "QLinearAdd"): (8, {}),
    (_MICROSOFT, "QLinearAveragePool"): (5, {**_WINDOW, "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0}),
    (_MICROSOFT, "QLinearConcat"): (_ANY, {"axis": ...}),
    (_MICROSOFT, "QLinearGlobalAveragePool"): (5, {"channels_last": 0}),
    (_MICROSOFT, "QLinearLeakyRelu"): (5, {"alpha": 0.01}),
    (_MICROSOFT, "QLinearMul"): (8, {}),
    (_MICROSOFT, "QLinearSigmoid"): (5, {}),
    (_MICROSOFT, "QLinearSoftmax"): (5, {"axis": -1, "opset": ...}),
    (_MICROSOFT, "QLinearWhere"): (9, {}),
    (_MICROSOFT, "QuantizeLinear"): (3, {"axis": ...}),
    (_MICROSOFT, "QuickGelu"): (1, {"alpha": 1.702}),
    (_MICROSOFT, "RotaryEmbedding"): (4, {
        "interleaved": ..., "is_packed_batching": ..., "num_heads": ..., "rotary_embedding_dim": ..., "scale": ...,
    }),
    (_MICROSOFT, "SkipLayerNormalization"): (5, {"epsilon": 1e-12}),
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): (4, {"epsilon": 1e-12}),
    (_MICROSOFT, "TransposeMatMul"): (2, _PRODUCT),
    (_MICROSOFT, "Trilu"): (2, {"upper": 1}),
})  # fmt: skip
"""Of ops without a schema in ``onnx``, in their first version: most inputs, and attributes."""


@cache
def versions_of(domain: str, name: str) -> tuple[OpFacts, ...]:
    """Return what is stated of every version of an op, ascending; nothing of an op that nobody here knows."""
    schemas = sorted(_schemas().get((domain, name), ()), key=lambda schema: int(schema.since_version))
    found = {schema.since_version: _read(schema) for schema in schemas}
    if schemas and schemas[-1].deprecated:
        newest = schemas[-1].since_version
        found[newest] = replace(found[newest], is_withdrawn=True)
    if (domain, name) in _DECLARED:
        most, attributes = _DECLARED[domain, name]
        found[1] = OpFacts(1, MappingProxyType(dict(attributes)), most)
    return tuple(found[since] for since in sorted(found))


@cache
def find_facts(domain: str, name: str, opset: int) -> OpFacts | None:
    """Return what is stated of an op in a model of an opset of its domain; None where nothing is.

    An op that an opset took away is withdrawn in all later ones.
    """
    return next((facts for facts in reversed(versions_of(domain, name)) if facts.since <= opset), None)


def is_known(domain: str, name: str, opset: int) -> bool:
    """Say whether an opset has an op, as far as anybody here knows: it is not newer than that, nor took the op away."""
    facts = find_facts(domain, name, opset)
    return (domain != "" or opset <= NEWEST_OPSET) and (facts is None or not facts.is_withdrawn)


def stated_defaults(domain: str, name: str, opset: int) -> dict[str, Any]:
    """Return the defaults of those attributes of an op that have one."""
    facts = find_facts(domain, name, opset)
    return {} if facts is None else {k: v for k, v in facts.attributes.items() if v is not NO_DEFAULT}


@cache
def _schemas() -> Mapping[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def _read(schema: Any) -> OpFacts:
    attributes = {name: _default(attribute) for name, attribute in schema.attributes.items()}
    return OpFacts(schema.since_version, MappingProxyType(attributes), schema.max_input)


def _default(attribute: Any) -> Any:
    given = attribute.default_value
    if attribute.required or not given.name:
        return NO_DEFAULT
    value = onnx.helper.get_attribute_value(given)
    if isinstance(value, bytes):
        return value.decode("ascii")
    if isinstance(value, float):
        return float(str(np.float32(value)))  # as it is written, not as 32 bits have it
    return (
        value if isinstance(value, int) else [one.decode("ascii") if isinstance(one, bytes) else one for one in value]
    )
