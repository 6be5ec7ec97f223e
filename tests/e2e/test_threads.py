"""Modules compiled in several threads at once give what they give one after the other."""

import threading

import pytest
import torch
from torch import nn

import heterps_compile

JOBS = [(4, "torch"), (8, "torch"), (4, "jax"), (12, "torch"), (8, "jax")]
BATCH = 4


class Tower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(width, width), nn.Dropout(0.5), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x))))


def compiled(width: int, backend: str) -> tuple:
    is_trained = backend == "torch"  # its dropout draws from the one generator there is
    torch.manual_seed(width)
    module = Tower(width).train(is_trained)
    made = heterps_compile.compile(
        module,
        (torch.ones(BATCH, width),),
        backend=backend,
        min_stages=2,
        method="rl" if width == 8 else "greedy",
        mode="training" if is_trained else "inference",
        seed=width,
    )
    found = made.plan.verification
    assert found is not None
    plan = made.plan
    return (
        plan.value,
        plan.found_by,
        [(stage.layers, stage.device) for stage in plan.stages],
        found.max_rel < found.tolerance,
    )


@pytest.mark.slow  # compiles four models in four threads and in one
def test_four_threads_compile_what_one_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from heterps_compile.passes.placement.learned import rl  # noqa: PLC0415 - torch
    from heterps_compile.passes.placement.local.annealing import Annealing  # noqa: PLC0415 - numba

    short = rl.Rl(rounds=2, samples=8, annealing=Annealing(changes=1_000, patience=1))
    monkeypatch.setattr(rl, "Rl", lambda: short)
    alone = {job: compiled(*job) for job in JOBS}
    together: dict[tuple[int, str], object] = {}

    def work(jobs: list[tuple[int, str]]) -> None:
        for job in jobs:
            try:
                together[job] = compiled(*job)
            except Exception as error:  # noqa: BLE001 - shown below
                together[job] = error

    threads_before = torch.get_num_threads()
    threads = [threading.Thread(target=work, args=(JOBS[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert torch.get_num_threads() == threads_before
