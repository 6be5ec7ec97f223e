"""What is private in PyTorch is used as it was looked at."""

import re
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from heterps_compile.runtime import c10d

ROOT = Path(__file__).parents[3]


def test_private_names_are_tried_in_the_version_that_is_pinned_and_the_range_is_that_of_the_package():
    """A new version here: look at every name of the table again, then say so there."""
    (pinned,) = re.findall(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["torch"]
    (least,) = [text.removeprefix("torch>=") for text in needed if text.startswith("torch>=")]
    said = " ".join(str(c10d.__doc__).split())
    assert f"tried in PyTorch {pinned}," in said
    assert f"({least} and later)" in said


def join_after_a_failure_of_one(rank: int, path: str) -> float:
    """Fail to join on rank 0 alone, as where a stranger took a place; then join all, and sum."""
    dist.barrier()  # a rank that leaves while another still connects would end its attempt
    c10d.leave_world()
    if rank == 0:
        with pytest.raises(RuntimeError):
            dist.init_process_group(
                "gloo", store=c10d.FileStore(f"{path}-alone", 2), rank=0, world_size=2, timeout=timedelta(seconds=0.1)
            )
        c10d.leave_world()
    dist.init_process_group(
        "gloo", store=c10d.FileStore(path, 2), rank=rank, world_size=2, timeout=timedelta(minutes=2)
    )
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def test_a_rank_whose_attempt_failed_meets_the_others_at_the_next(tmp_path):
    assert run_ranks(join_after_a_failure_of_one, 2, str(tmp_path / "store")) == [2.0, 2.0]
