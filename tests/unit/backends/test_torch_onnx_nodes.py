"""ONNX's own node tests, run through the torch backend's op table."""

import pytest
from onnx_node_cases import NodeCase, fault, node_cases

from heterps_compile.backends.torch import run_onnx
from heterps_compile.backends.torch.onnx_ops.table import declared_ops

CHANCE = "drawn by chance: the expected output is one draw of numpy's"
HALF = "float16: one unit in the last place off, which is more than the tolerance"
NOISE = "the expected zeros are the rounding errors of numpy's own transform"
STRINGS = "strings, which no tensor holds"

# Every node test of declared ops that is not required to pass, and why.
EXCEPTIONS = {
    "test_attention_4d_causal_fp16": HALF,
    "test_attention_4d_causal_fp16_expanded": HALF,
    "test_attention_4d_fp16": HALF,
    "test_ai_onnx_ml_label_encoder_string_int": STRINGS,
    "test_ai_onnx_ml_label_encoder_string_int_no_default": STRINGS,
    "test_ai_onnx_ml_label_encoder_tensor_mapping": STRINGS,
    "test_ai_onnx_ml_label_encoder_tensor_value_only_mapping": STRINGS,
    "test_bernoulli": CHANCE,
    "test_bernoulli_double": CHANCE,
    "test_bernoulli_double_expanded": CHANCE,
    "test_bernoulli_expanded": CHANCE,
    "test_bernoulli_seed": CHANCE,
    "test_bernoulli_seed_expanded": CHANCE,
    "test_dft_inverse": NOISE,
    "test_dft_inverse_opset19": NOISE,
    "test_equal_string": STRINGS,
    "test_equal_string_broadcast": STRINGS,
    "test_training_dropout": CHANCE,
    "test_training_dropout_default": CHANCE,
    "test_training_dropout_default_mask": CHANCE,
    "test_training_dropout_mask": CHANCE,
}

# These numbers only ever go up.
LEAST_OPS = 189
LEAST_PASSED = 1754

OPS = sorted(declared_ops())


def cases() -> list[NodeCase]:
    """Return the tests that are made of declared ops alone and are to pass."""
    declared = declared_ops().keys()
    return [case for case in node_cases() if case.ops <= declared and case.name not in EXCEPTIONS]


def fault_of(case: NodeCase) -> str:
    try:
        return fault(case, run_onnx)
    except Exception as error:  # noqa: BLE001 - whatever it raises, the test is not passed
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("op", OPS, ids=["::".join(filter(None, op)) for op in OPS])
def test_an_op_passes_all_of_its_node_tests(op: tuple[str, str]) -> None:
    """A test of several ops is of the one that comes first."""
    assert {case.name: wrong for case in cases() if min(case.ops) == op and (wrong := fault_of(case))} == {}


def test_every_exception_is_a_test_that_fails() -> None:
    found = {case.name: case for case in node_cases()}
    chance = {name for name, reason in EXCEPTIONS.items() if reason == CHANCE}
    assert [name for name in EXCEPTIONS if name not in chance and not fault_of(found[name])] == []


def test_the_table_does_not_shrink() -> None:
    assert len(declared_ops()) >= LEAST_OPS
    assert len(cases()) >= LEAST_PASSED
