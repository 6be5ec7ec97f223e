"""ONNX's own node tests: every test of every declared op passes, except those listed with a reason."""

import random
from functools import cache
from types import MappingProxyType

import pytest
from onnx_node_cases import NodeCase, fault, node_cases

from heterps_compile.backends.jax import run_onnx
from heterps_compile.backends.jax.run_onnx import declared_ops

RANDOM = "a mask drawn by chance, which a pure function without a key cannot draw"
DOUBLE = "the expected numbers are of a Fourier transform in float64, these are of one in float32"
STRINGS = "jax has no strings"
TRIPS = "a loop that collects as many values as a Relu says; jax must know the size"

EXCEPTIONS = MappingProxyType(
    {
        "test_ai_onnx_ml_label_encoder_string_int": STRINGS,
        "test_ai_onnx_ml_label_encoder_string_int_no_default": STRINGS,
        "test_ai_onnx_ml_label_encoder_tensor_mapping": STRINGS,
        "test_ai_onnx_ml_label_encoder_tensor_value_only_mapping": STRINGS,
        "test_dft": DOUBLE,
        "test_dft_axis": DOUBLE,
        "test_dft_axis_opset19": DOUBLE,
        "test_dft_opset19": DOUBLE,
        "test_dft_rfft": DOUBLE,
        "test_dft_rfft_opset19": DOUBLE,
        "test_equal_string": STRINGS,
        "test_equal_string_broadcast": STRINGS,
        "test_range_bfloat16_type_positive_delta_expanded": TRIPS,
        "test_range_float16_type_positive_delta_expanded": TRIPS,
        "test_range_float_type_positive_delta_expanded": TRIPS,
        "test_range_int32_type_negative_delta_expanded": TRIPS,
        "test_training_dropout": RANDOM,
        "test_training_dropout_default": RANDOM,
        "test_training_dropout_default_mask": RANDOM,
        "test_training_dropout_mask": RANDOM,
    }
)

LEAST_OPS = 184
LEAST_PASSED = 1753


@cache
def cases() -> list[NodeCase]:
    """Return the tests that are made of declared ops alone and are to pass."""
    declared = declared_ops().keys()
    return [case for case in node_cases() if case.ops <= declared and case.name not in EXCEPTIONS]


def test_as_many_ops_are_declared_as_ever() -> None:
    assert len(declared_ops()) >= LEAST_OPS


@pytest.mark.slow  # makes the data of every node test
def test_as_many_node_tests_are_to_pass_as_ever() -> None:
    assert len(cases()) >= LEAST_PASSED


@pytest.mark.slow  # two thousand compilations
def test_every_exception_is_still_one() -> None:
    """A test that passes by now, or is no more, has no place in the list."""
    found = {case.name: case for case in node_cases() if case.name in EXCEPTIONS}
    assert sorted(found) == sorted(EXCEPTIONS)
    passed = []
    for name, case in found.items():
        try:
            if not fault(case, run_onnx):
                passed.append(name)
        except Exception:  # noqa: BLE001, S112 - whatever it raises, the test does not pass
            continue
    assert passed == []


OPS = [f"{domain}.{op}".lstrip(".") for domain, op in declared_ops()]


def cases_of(name: str) -> list[NodeCase]:
    """Return the tests of an op; one of several ops stands with the op that comes first."""
    domain, _, op = name.rpartition(".")
    return [case for case in cases() if min(case.ops) == (domain, op)]


DRAWN = frozenset(random.Random(0).sample(OPS, 12))  # noqa: S311 - no secret


def most_telling(name: str) -> list[NodeCase]:
    """Return the test of an op with the most attributes and inputs, if the op has tests."""
    return sorted(cases_of(name), key=lambda case: -said(case))[:1]


def said(case: NodeCase) -> int:
    return sum(len(node.attribute) + len(node.input) for node in case.model.graph.node[:1])


def faults(tested: list[NodeCase]) -> dict[str, str]:
    return {case.name: wrong for case in tested if (wrong := fault(case, run_onnx))}


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_most_telling_node_test_of_a_drawn_op_passes(name: str) -> None:
    assert faults(most_telling(name)) == {}


@pytest.mark.slow  # two thousand compilations
@pytest.mark.parametrize("name", OPS)
def test_every_other_node_test_of_an_op_passes(name: str) -> None:
    ran = {case.name for case in most_telling(name)} if name in DRAWN else set()
    assert faults([case for case in cases_of(name) if case.name not in ran]) == {}
