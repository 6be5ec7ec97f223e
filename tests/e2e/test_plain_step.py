"""A plain training: its steps execute no file of a feature that the run does not use."""

import json
from pathlib import Path

from commands import heterps
from written_ctrdnn import BATCH, DATA, MICRO_BATCHES, TRAINING_FILE, write_ctrdnn

import heterps_compile

TRACED = """
import json, os, sys

class Traced(torch.optim.SGD):
    steps, files = 0, set()

    def step(self):
        super().step()
        self.steps += 1
        if self.steps == 5:
            sys.setprofile(lambda frame, event, _: event == "call" and self.files.add(frame.f_code.co_filename))
        if self.steps == 7:
            sys.setprofile(None)
            with open(f"executed.{os.getpid()}.json", "w") as file:
                json.dump(sorted(self.files), file)

def optimizer(parameters):
    return Traced([parameter for _, parameter in parameters], lr=0.1)
"""

EXECUTED = """
    data/model_inputs data/prefetch
    launch/beats launch/learning_rates launch/loop launch/progress launch/run_data launch/training_file launch/watch
    pipeline/batch_loss pipeline/engine pipeline/exchange pipeline/gradient_sums pipeline/layout pipeline/message
    pipeline/recorder pipeline/replica_state pipeline/stage_actions pipeline/transport
    pipeline/shared_memory/arena pipeline/shared_memory/endpoints pipeline/shared_memory/mailboxes
    pipeline/shared_memory/memory_group pipeline/shared_memory/neighbours pipeline/shared_memory/spin
    sync/all_reduce sync/collective sync/contract
    telemetry/events telemetry/rank_recorder
"""


def test_a_plain_step_executes_no_file_of_a_feature_that_it_does_not_use(tmp_path):
    write_ctrdnn(tmp_path, stages=2)
    (tmp_path / "train.py").write_text(TRAINING_FILE + TRACED)
    words = (
        "--data",
        DATA,
        "--steps",
        "9",
        "--batch",
        str(BATCH),
        "--micro-batches",
        str(MICRO_BATCHES),
        "--schedule",
        "1f1b",
    )
    run = heterps(
        "run", "model2.heterps", "--train", "train.py", *words, "--replicas", "2,1", cwd=tmp_path, OMP_NUM_THREADS="1"
    )
    assert run.returncode == 0, run.stderr
    ranks = [json.loads(path.read_text()) for path in tmp_path.glob("executed.*.json")]
    assert len(ranks) == 3
    runtime = Path(heterps_compile.__file__).parent / "runtime"
    files = {Path(name) for rank in ranks for name in rank}
    found = {str(file.relative_to(runtime).with_suffix("")) for file in files if file.is_relative_to(runtime)}
    assert sorted(found) == sorted(EXECUTED.split())
