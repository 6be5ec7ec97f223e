"""The end of a run, where nobody reads it, and who tells of a fault."""

import io
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from plans import PLAN
from rich.console import Console
from told_runs import RANKS, told_run
from torch.distributed import HashStore

from heterps_compile.runtime.launch.faults import Fault, Place, Progress
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.launch.rank_context import Result
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.run_report import RunReport, print_summary
from heterps_compile.runtime.launch.watch import Supervision, Watch, post_fault
from heterps_compile.schedule.micro_batch import MicroBatch

SHOW = SimpleNamespace(last_loss="0.5", tables=None, summary=lambda: None)
RESULT = Result(0, 10_000, 8)


def test_a_summary_that_nobody_reads_ends_no_run():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        print_summary(Console(file=stream), RESULT, SHOW)
        stream.write("more")  # what comes after it has somewhere to go too


@pytest.mark.parametrize("is_busy", [True, False])
def test_the_report_separates_a_busy_machine_from_a_wrong_plan(is_busy, tmp_path):
    """Both stages compute 20 ms a micro-batch by the wall, planned 4 ms: a busy machine or a wrong plan."""
    told_run(tmp_path, steps=4, cpu_share=0.2 if is_busy else 1.0)
    times = (MicroBatch(2, 0.002, 0.002),)
    stages = [replace(stage, replicas=2 - stage.index, times=times) for stage in PLAN.stages]
    schedule = replace(PLAN.schedule, name="gpipe", micro_batches=2, step_s=0.020)
    plan = replace(
        PLAN, batch=8, stages=tuple(stages), schedule=schedule, request=replace(PLAN.request, mode="training")
    )
    layout = SimpleNamespace(
        training=True, schedule="gpipe", micro_batches=2, batch=8, world_size=len(RANKS),
        ranks_of=lambda stage: [rank for rank, (of, _, _) in RANKS.items() if of == stage],
    )  # fmt: skip
    prepared = SimpleNamespace(plan=plan, layout=layout, precision=plan.request.precision, world_size=len(RANKS))
    with RunReport(prepared, RunOptions(directory="m.heterps", quiet=True, threads=2), tmp_path, io.StringIO()) as show:
        show.poll()
        console = Console(file=io.StringIO(), width=120, markup=False)
        print_summary(console, RESULT, show)
    shown = console.file.getvalue()
    measured = next(line.split()[-3:] for line in shown.splitlines() if line.startswith("stage 1 (v100)"))
    sentence = "stage 1 computed 40 ms wall, 8 ms of CPU a step: the cores were taken, so its CPU time is compared"
    assert (measured, sentence in shown) == ((["8", "ms", "1.00"], True) if is_busy else (["40", "ms", "5.00"], False))
    cause = (
        "stage 0 computed 20 ms wall, 4 ms of CPU a micro-batch: the cores were taken (+48 ms of +60 ms)"
        if is_busy
        else "stage 1 computed 20 ms a micro-batch, planned 4 ms ("
    )
    assert cause in shown


def tell(store: HashStore, ranks: int, capfd, **given) -> int:
    """Have every rank hear of a fault; give how many printed it."""
    fault = Fault(Place(0, (0,), 0), Progress(), "was killed by SIGKILL")
    post_fault(store, fault)
    places = [Place(rank, (0,), rank) for rank in range(ranks)]
    watches = [
        Watch(store, places, rank, ProgressRecorder(), Supervision(hang_after_s=10, **given)) for rank in range(ranks)
    ]
    telling = [threading.Thread(target=watch._tell, args=(fault,)) for watch in watches]
    for thread in telling:
        thread.start()
    for thread in telling:
        thread.join()
    return capfd.readouterr().err.count("Error: stage 0, replica 0 (rank 0) was killed by SIGKILL")


def test_of_ranks_that_a_launcher_follows_none_tells_a_fault_and_of_others_one_of_each_machine(capfd):
    assert tell(HashStore(), 3, capfd) == 0
    assert tell(HashStore(), 3, capfd, late_s=1.0) == 1
