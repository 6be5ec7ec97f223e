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
_FAULTS: dict[str, str] = {}


def fault_of(case: NodeCase) -> str:
    """Run a case once, however many of its ops ask."""
    if case.name not in _FAULTS:
        try:
            _FAULTS[case.name] = fault(case, run_onnx)
        except Exception as error:  # noqa: BLE001 - whatever it raises, the test is not passed
            _FAULTS[case.name] = f"{type(error).__name__}: {error}"
    return _FAULTS[case.name]


@pytest.mark.parametrize("op", OPS, ids=["::".join(filter(None, op)) for op in OPS])
def test_an_op_passes_all_of_its_node_tests(op: tuple[str, str]) -> None:
    cases = [case for case in node_cases() if op in case.ops and case.ops <= declared_ops().keys()]
    assert {c.name: fault_of(c) for c in cases if c.name not in EXCEPTIONS and fault_of(c)} == {}


def test_every_exception_is_a_test_that_fails() -> None:
    cases = {case.name: case for case in node_cases()}
    chance = {name for name, reason in EXCEPTIONS.items() if reason == CHANCE}
    assert [name for name in EXCEPTIONS if name not in chance and not fault_of(cases[name])] == []


def test_the_table_does_not_shrink() -> None:
    assert len(declared_ops()) >= LEAST_OPS
    passed = [c for c in node_cases() if c.ops <= declared_ops().keys() and not fault_of(c)]
    assert len(passed) >= LEAST_PASSED
