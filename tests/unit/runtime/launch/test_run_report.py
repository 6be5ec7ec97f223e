"""The end of a run, where nobody reads it, and who tells of a fault."""

import os
import threading
from types import SimpleNamespace

from rich.console import Console
from torch.distributed import HashStore

from heterps_compile.runtime.launch.faults import Fault, Place, Progress
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.launch.rank_context import Result
from heterps_compile.runtime.launch.run_report import print_summary
from heterps_compile.runtime.launch.watch import Supervision, Watch, post_fault

SHOW = SimpleNamespace(last_loss="0.5", tables=None, summary=lambda: None)
RESULT = Result(0, 10_000, 8)


def test_a_summary_that_nobody_reads_ends_no_run():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        print_summary(Console(file=stream), RESULT, SHOW)
        stream.write("more")  # what comes after it has somewhere to go too


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
