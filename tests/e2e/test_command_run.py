"""``heterps-compile run``: trains as one process would, goes on where it stopped, and infers what the model says."""

import inspect
import json
from dataclasses import replace

import pytest
import torch
from commands import heterps
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from trace_format import read_trace
from written_ctrdnn import (
    BATCH,
    DATA,
    LEARNING_RATE,
    MICRO_BATCH,
    MICRO_BATCHES,
    MOMENTUM,
    largest_difference,
    model,
    samples,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

import heterps_compile
from heterps_compile.runtime.checkpoint.folder import holding_checkpoints

STEPS = 6
EMA = 0.9


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with the model in two stages and in three, and the training file."""
    folder = tmp_path_factory.mktemp("written")
    write_ctrdnn(folder, stages=2)
    write_ctrdnn(folder, stages=3)
    return folder


def train(folder, *words, stages=2, steps=STEPS, replicas="2,1"):
    size = ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--replicas", replicas)
    return heterps(
        *("run", f"model{stages}.heterps", "--train", "train.py", "--data", DATA, "--steps", str(steps)),
        *size,
        *words,
        cwd=folder,
        OMP_NUM_THREADS="1",
    )


def refused(run) -> str:
    """Return the message of a run that was refused: one line, exit code 1."""
    assert run.returncode == 1, run.stderr
    errors = [line for line in run.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, run.stderr
    return errors[0]


def test_training_ends_with_the_weights_of_one_process(written, tmp_path):
    traced = ("--trace", str(tmp_path / "trace.json"))
    run = train(written, "--checkpoint", str(tmp_path / "ck"), "--log", str(tmp_path / "log.jsonl"), *traced)
    assert run.returncode == 0, run.stderr
    assert f"{STEPS} steps, {STEPS * BATCH} samples" in run.stdout
    assert "stage 0: " in run.stderr
    ours, theirs = weights_in(tmp_path / "ck" / f"step-{STEPS:06d}"), trained_in_one_process(STEPS)
    assert largest_difference(ours, theirs) < 1e-6
    size = ("--batch", str(MICRO_BATCH), "--micro-batches", "1", "--replicas", "1,1,1", "-q")
    words = ("--data", DATA, "--steps", "1", "--output", str(tmp_path / "out"))
    weights = ("--weights", str(tmp_path / "ck" / f"step-{STEPS:06d}"))
    run = heterps("run", "model3.heterps", *words, *size, *weights, cwd=written, OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    assert torch.allclose(tensors_in(tmp_path / "out" / f"sample-{0:012d}.safetensors"), answers(theirs), atol=1e-5)
    logged = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert logged == list(range(STEPS))
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > STEPS


def test_the_trace_of_a_run_as_planned_has_the_simulated_step_beside_it(written, tmp_path):
    pool = heterps_compile.load_cluster("heterps-paper")
    pool = replace(pool, device_types=(replace(pool.device_type("v100"), max_units=2),))
    compiled = heterps_compile.compile(
        *model(), method="greedy", mode="training", min_stages=2, max_stages=2, cluster=pool, verify=False
    )
    compiled.save(tmp_path / "m.heterps")
    words = ("--data", DATA, "--steps", "5", "--trace", str(tmp_path / "trace.json"), "-q")
    run = heterps("run", str(tmp_path / "m.heterps"), "--train", "train.py", *words, cwd=written, OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    events = read_trace((tmp_path / "trace.json").read_text())
    tracks = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.split(":")[0] for name in tracks] == ["stage 0", "stage 1", "simulated stage 0", "simulated stage 1"]


def scheduler(optimizer):
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[2])


def test_clipped_and_scheduled_training_goes_on_in_other_cuts_as_one_process_does(written, tmp_path):
    clip = 0.05
    (tmp_path / "train.py").write_text((written / "train.py").read_text() + inspect.getsource(scheduler))
    clipped = ("--clip-norm", str(clip), "-q")
    words = (*clipped, "--train", str(tmp_path / "train.py"), "--log", str(tmp_path / "log.jsonl"))
    ck = ("--checkpoint", str(tmp_path / "ck"), "--resume")
    for stages, replicas, steps in [(2, "2,1", 3), (3, "1,1,1", STEPS)]:
        run = train(written, *words, *ck, stages=stages, replicas=replicas, steps=steps)
        assert run.returncode == 0, run.stderr
    theirs = trained_in_one_process(STEPS, clip_norm=clip, scheduler=scheduler)
    assert largest_difference(weights_in(tmp_path / "ck" / f"step-{STEPS:06d}"), theirs) < 1e-6
    told = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    norms, rates = [step["gradient_norm"] for step in told], [step["learning_rate"] for step in told]
    assert len(norms) == STEPS
    assert rates[:3] == pytest.approx([0.1 * rates[2], 0.55 * rates[2], rates[2]])  # then the cosine, also resumed
    assert rates[2] > rates[3] > rates[4] > rates[5]
    assert min(norms) > clip
    other = refused(train(written, *words, *ck, "--data", f"{DATA}~1.05", stages=3, replicas="1,1,1", steps=STEPS + 1))
    assert f"step-000006 was reached with other data ('{DATA}' with content " in other
    message = refused(train(written, *clipped, *ck, stages=3, replicas="1,1,1", steps=STEPS + 1))
    assert "step-000006 has a state of a scheduler and the training file makes none" in message


def test_a_run_in_float16_goes_on_with_its_loss_scale_as_one_process_does(written, tmp_path):
    ck = ("--checkpoint", str(tmp_path / "ck"), "--resume", "--log", str(tmp_path / "log.jsonl"), "--precision", "fp16")
    ck = (*ck, "--ema", str(EMA))
    begun, anew = train(written, *ck, steps=3).stderr, "no checkpoint to go on from: the run begins at its first step\n"
    assert ", 4 micro-batches of 4 samples, fp16 (planned: fp32)\n" in begun
    assert anew in begun
    state = json.loads((tmp_path / "ck" / "step-000003" / "state.json").read_text())
    assert (state["precision"], state["scaling"]["growth_tracker"]) == ("fp16", 3)
    run = train(written, *ck, stages=3, replicas="1,1,1")
    assert run.returncode == 0, run.stderr
    assert anew not in run.stderr
    told = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(step["loss_scale"], step["skipped"]) for step in told] == [(65536.0, False)] * STEPS
    average = AveragedModel(model()[0], multi_avg_fn=get_ema_multi_avg_fn(EMA))
    theirs = trained_in_one_process(STEPS, half=True, average=average)
    assert (
        largest_difference(weights_in(tmp_path / "ck" / f"step-{STEPS:06d}"), theirs) < torch.finfo(torch.float16).eps
    )
    assert largest_difference(theirs, trained_in_one_process(STEPS)) > 1e-5, "float16 is no float32"
    averaged = weights_in(tmp_path / "ck" / f"step-{STEPS:06d}", "ema")
    assert largest_difference(averaged, dict(average.module.state_dict())) < torch.finfo(torch.float16).eps
    assert largest_difference(averaged, theirs) > 1e-3, "an average is not the last"


def test_a_run_goes_on_in_other_cuts_with_other_replicas(written, tmp_path):
    ck = ("--checkpoint", str(tmp_path / "ck"), "--every", "1", "--keep", "2", "-q")
    assert train(written, *ck, steps=2).returncode == 0
    for stages, replicas, steps in [(2, "1,2", 4), (3, "1,1,1", STEPS)]:
        run = train(written, *ck, "--resume", stages=stages, replicas=replicas, steps=steps)
        assert run.returncode == 0, run.stderr
        assert f"after the {steps - 2} steps of the checkpoint" in run.stdout
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == [f"step-{n:06d}" for n in (STEPS - 1, STEPS)]
    assert largest_difference(weights_in(tmp_path / "ck" / f"step-{STEPS:06d}"), trained_in_one_process(STEPS)) < 1e-6


def test_tables_on_servers_are_clipped_and_scheduled_and_go_on_on_fewer_and_on_none_as_one_process_does(
    written, tmp_path
):
    source = (written / "train.py").read_text() + inspect.getsource(scheduler)
    (tmp_path / "train.py").write_text(source.replace(f"momentum={MOMENTUM}", "momentum=0"))
    words = ("--checkpoint", str(tmp_path / "ck"), "--resume", "-q", "--train", str(tmp_path / "train.py"))
    for servers, steps in [(2, 2), (1, 4), (0, STEPS)]:
        served = ("--parameter-servers", str(servers), "--server-learning-rate", str(LEARNING_RATE)) if servers else ()
        run = train(written, *words, *served, "--clip-norm", "0.05", steps=steps)
        assert run.returncode == 0, run.stderr
        checkpoint = tmp_path / "ck" / f"step-{steps:06d}"
        assert (checkpoint / "servers").is_dir() == bool(servers)
        assert any(name.startswith("tables.") for name in weights_in(checkpoint)) == (not servers)
    theirs = trained_in_one_process(STEPS, clip_norm=0.05, scheduler=scheduler, momentum=0)
    assert largest_difference(weights_in(checkpoint), theirs) < 1e-6


@pytest.mark.parametrize("file_format", ["safetensors", "npz"])
def test_inference_gives_what_the_model_gives(written, tmp_path, file_format):
    size = ("--batch", str(2 * MICRO_BATCH), "--micro-batches", "2", "--replicas", "1,2", "-q")
    words = ("--data", DATA, "--steps", "2", "--output", str(tmp_path / "out"), "--output-format", file_format)
    run = heterps("run", "model2.heterps", *words, *size, cwd=written, OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == [f"sample-{first:012d}.{file_format}" for first in (0, 4, 8, 12)]
    read = samples(0, 4 * MICRO_BATCH)
    with torch.no_grad():
        expected = model()[0](read["sparse"], read["dense"])
    found = torch.cat([tensors_in(file) for file in files])
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def answers(weights):
    """Return what the model with these weights says of the first micro-batch."""
    built, _ = model()
    built.load_state_dict(weights)
    read = samples(0, MICRO_BATCH)
    with torch.no_grad():
        return built(read["sparse"], read["dense"])


def tensors_in(file):
    if file.suffix == ".safetensors":
        return load_file(file)["output_0"]
    import numpy as np  # noqa: PLC0415 - for one of two formats

    with np.load(file, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["output_0"])


def test_inference_answers_samples_that_do_not_fill_a_step(written, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = {name: column.tolist() for name, column in samples(0, 10, ("sparse", "dense")).items()}
    dense = pa.array(rows["dense"], pa.list_(pa.float32()))
    parquet.write_table(pa.table({"sparse": rows["sparse"], "dense": dense}), tmp_path / "ten.parquet")
    size = ("--batch", str(2 * MICRO_BATCH), "--micro-batches", "2", "--replicas", "1,2", "-q")
    words = ("--data", str(tmp_path / "ten.parquet"), "--output", str(tmp_path / "out"))
    run = heterps("run", "model2.heterps", *words, *size, cwd=written, OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("2 steps, 10 samples\n")
    given = [tensors_in(file) for file in sorted((tmp_path / "out").iterdir())]
    assert [len(tensor) for tensor in given] == [4, 4, 2]
    whole, _ = model()
    batch = samples(0, 10)
    assert torch.allclose(torch.cat(given), whole.eval()(batch["sparse"], batch["dense"]), atol=1e-5)


def test_data_without_a_column_are_refused_by_the_rank_that_reads_them(written):
    run = heterps(
        *("run", "model2.heterps", "--data", "random:sparse<50", "--train", "train.py", "--steps", "2", "-q"),
        *("--batch", "4", "--micro-batches", "1", "--replicas", "1,1"),
        cwd=written,
        OMP_NUM_THREADS="1",
    )
    assert "stopped in loss() of the training file, line 6: the batch has no column 'label'" in refused(run)


def test_two_runs_do_not_write_checkpoints_to_one_folder(written, tmp_path):
    (tmp_path / "ck").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ck")
    with holding_checkpoints(str(tmp_path / "link")):
        message = refused(train(written, "--checkpoint", str(tmp_path / "ck")))
    assert f"another run writes its checkpoints to '{tmp_path}/ck'; wait for its end, or name another" in message
