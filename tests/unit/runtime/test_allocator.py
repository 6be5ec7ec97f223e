"""Memory that a pass over a model frees is there for the next pass."""

import os
import subprocess
import sys

import pytest

from heterps_compile.runtime.allocator import keep_freed_memory

PASSES = """
import resource, sys
from heterps_compile.runtime.allocator import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else False
for number in range(6):
    if number == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(8 << 20) for _ in range(8)]  # 16,384 pages
    del blocks
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(what: str, **variables: str) -> tuple[bool, int]:
    words = [sys.executable, "-c", PASSES, what]
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name.upper()}
    said = subprocess.run(words, env=environment | variables, capture_output=True, text=True, check=True).stdout
    kept, count = said.split()
    return kept == "True", int(count)


def test_a_pass_that_frees_all_it_took_pays_for_its_pages_once():
    kept, count = faults("keep")
    if not kept:
        pytest.skip("this C library is not glibc")
    assert count < 1_000
    assert faults("leave")[1] > 3 * 10_000


def test_what_the_user_set_stays():
    assert faults("keep", MALLOC_TRIM_THRESHOLD_="1000000")[0] is False


def test_where_there_is_no_such_library_nothing_happens(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert keep_freed_memory() is False
