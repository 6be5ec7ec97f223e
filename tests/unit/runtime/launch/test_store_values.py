"""What ranks leave in the store for one another."""

import re

import pytest
from torch.distributed import HashStore

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.folder import STEP_PATTERN
from heterps_compile.runtime.launch.store_values import read_number, read_word


def having(value: bytes | str) -> HashStore:
    store = HashStore()
    store.set("key", value)
    return store


@pytest.mark.parametrize("value", ["x", "", "1.5", "0x1", "٣", " 1", "1 ", "9" * 19, "--1", b"\xff", "1\n"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(RunError, match="version"):
        read_number(having(value), "key", "the count of steps")


def test_a_number_is_given_and_has_a_least_value():
    assert read_number(having("120"), "key", "the count of steps") == 120
    with pytest.raises(RunError, match=r"-1.*\b0\b"):
        read_number(having("-1"), "key", "the count of steps")


@pytest.mark.parametrize(
    "value",
    ["/elsewhere/step-000001", "../step-000001", "step-000001/..", "step-000001\n", "step-1", "step-00000x", "."],
)
def test_the_name_of_a_checkpoint_is_no_path(value):
    with pytest.raises(RunError, match="checkpoint"):
        read_word(having(value), "key", re.compile(STEP_PATTERN), "the name of a checkpoint")
    assert (
        read_word(having("step-000001"), "key", re.compile(STEP_PATTERN), "the name of a checkpoint") == "step-000001"
    )
