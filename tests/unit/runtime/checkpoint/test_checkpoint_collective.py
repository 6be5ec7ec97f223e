"""Ranks write a checkpoint together, and a run goes on from one only where it fits."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from plans import PLAN
from safetensors.torch import save_file
from torch import nn
from torch.distributed import HashStore

from heterps_compile.errors import RunError
from heterps_compile.plan.plan import Artifact
from heterps_compile.runtime.checkpoint.collective import Checkpoints
from heterps_compile.runtime.checkpoint.folder import find_checkpoints
from heterps_compile.runtime.checkpoint.format import Checkpoint, open_checkpoint, write_state
from heterps_compile.runtime.checkpoint.optimizer_state import read_optimizer
from heterps_compile.runtime.checkpoint.start import check_fits, check_tensors, check_weights, find_start, ties_of
from heterps_compile.runtime.checkpoint.state import RunState
from heterps_compile.runtime.data.identity import Identity, Part
from heterps_compile.runtime.launch.faults import PeerError, is_from_a_peer
from heterps_compile.runtime.launch.prepare import Prepared, places_of
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout

TORCH_PLAN = replace(
    PLAN,
    stages=tuple(replace(stage, backend="torch", replicas=1) for stage in PLAN.stages),
    hashes={"model": "ab" * 32},
)
LAYOUT = make_layout(TORCH_PLAN, training=True, step=StepShape(micro_batches=4, batch=64))
CLICKS = Identity("clicks", ("ids", "label"), (Part(300, "a"), Part(100, "b")))
PREPARED = Prepared(Path("m.heterps"), TORCH_PLAN, "cd" * 32, LAYOUT, places_of(LAYOUT))
STATE = RunState(step=5, samples=320, batch=64, seed=0, model="ab" * 32, plan="cd" * 32, stages=(0, 1), tied=())


def options_in(folder: Path, **given) -> RunOptions:
    return RunOptions(directory="m", train="t.py", data="x", checkpoint=str(folder), **given)


def rank_with(folder: Path, store: HashStore, rank: int, seed: int, **given) -> tuple[nn.Linear, Checkpoints]:
    """Return a rank whose stage is one trained layer, and its part of the checkpoints."""
    torch.manual_seed(seed)
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    held = {f"layer{rank}.{name}": parameter for name, parameter in layer.named_parameters()}
    held[f"layer{rank}.count"] = torch.tensor(seed)
    return layer, Checkpoints(PREPARED, options_in(folder, **given), store, rank, {rank: held}, optimizer)


def write_together(folder: Path, step: int, **given) -> list[nn.Linear]:
    """Have both ranks write; rank 1 does when rank 0 comes to wait for it."""
    store = HashStore()
    made = [rank_with(folder, store, rank, seed=rank, **given) for rank in (0, 1)]
    other = made[1][1]
    first = replace(made[0][1], store=AskingOthers(store, lambda: other.write(step)))
    first.write(step)
    return [layer for layer, _ in made]


class AskingOthers:
    """A store that lets the other ranks do their part when rank 0 comes to wait for them."""

    def __init__(self, store, others):
        self.store, self.others = store, others

    def set(self, key, value):
        self.store.set(key, value)

    def get(self, key):
        return self.store.get(key)

    def wait(self, keys):
        self.others()
        assert self.store.check(keys)


def test_what_two_ranks_write_two_others_go_on_from(tmp_path):
    layers = write_together(tmp_path / "ck", 5)
    (checkpoint,) = find_checkpoints(tmp_path / "ck")
    assert checkpoint.name == "step-000005"
    found = open_checkpoint(checkpoint)
    state = found.state
    assert state == replace(STATE, files=state.files)
    assert sorted(state.files) == sorted(path.name for path in checkpoint.iterdir() if path.name != "state.json")
    for rank, layer in enumerate(layers):
        fresh, checkpoints = rank_with(tmp_path / "ck", HashStore(), rank, seed=7)
        checkpoints.restore(found)
        assert torch.equal(fresh.weight, layer.weight)
        assert int(checkpoints.held[rank][f"layer{rank}.count"]) == rank
        momentum = checkpoints.optimizer.state[fresh.weight]["momentum_buffer"]
        assert torch.equal(momentum, torch.ones(2, 2))


def with_scheduler(checkpoints: Checkpoints, gamma: float = 0.5, steps: int = 0) -> Checkpoints:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(checkpoints.optimizer, gamma)
    for _ in range(steps):
        checkpoints.optimizer.step()
        scheduler.step()
    return replace(checkpoints, scheduler=scheduler)


def test_a_schedule_goes_on_with_its_rate(tmp_path):
    write_with_schedulers(tmp_path, [2, 2])
    _, fresh = rank_with(tmp_path, HashStore(), 1, seed=7)
    resumed = with_scheduler(fresh)
    resumed.restore(open_checkpoint(tmp_path / "step-000001"))
    assert resumed.scheduler.last_epoch == 2
    assert resumed.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2
    with pytest.raises(RunError, match="step-000001"):
        fresh.restore(open_checkpoint(tmp_path / "step-000001"))


def test_a_checkpoint_without_a_schedule_does_not_begin_one(tmp_path):
    write_together(tmp_path, 1)
    _, fresh = rank_with(tmp_path, HashStore(), 0, seed=7)
    with pytest.raises(RunError, match="step-000001"):
        with_scheduler(fresh).restore(open_checkpoint(tmp_path / "step-000001"))


def test_schedules_that_differ_do_not_come_together(tmp_path):
    write_with_schedulers(tmp_path, [2, 3])
    checkpoint = open_checkpoint(tmp_path / "step-000001")
    assert read_optimizer(checkpoint, ["layer0.weight"]).schedule.kind == "ExponentialLR"
    with pytest.raises(RunError, match="stages"):
        read_optimizer(checkpoint, ["layer0.weight", "layer1.weight"])
    damaged = tmp_path / "step-000001" / "optimizer-0.json"
    damaged.write_text(json.dumps({**json.loads(damaged.read_text()), "schedule": {"kind": "ExponentialLR"}}))
    unchecked = replace(checkpoint, state=replace(checkpoint.state, files=None))  # as an earlier version wrote it
    with pytest.raises(RunError, match="damaged"):
        read_optimizer(unchecked, ["layer0.weight"])


def write_with_schedulers(folder: Path, steps: list[int]) -> None:
    """Have both ranks write, each with a schedule that has made so many steps."""
    store = HashStore()
    first, other = (with_scheduler(rank_with(folder, store, rank, seed=0)[1], steps=steps[rank]) for rank in (0, 1))
    replace(first, store=AskingOthers(store, lambda: other.write(1))).write(1)


def test_what_a_rank_cannot_write_because_the_first_gave_up_is_not_its_fault(tmp_path):
    store = HashStore()
    store.set("checkpoint/1/folder", ".heterps-new-deleted")
    with pytest.raises(PeerError, match=r"rank 0\b") as caught:
        rank_with(tmp_path, store, 1, seed=0)[1].write(1)
    assert is_from_a_peer(caught.value)


@pytest.mark.parametrize("said", ["/elsewhere", "../elsewhere", ".heterps-new-/../elsewhere", "", "step-000001"])
def test_the_folder_of_a_checkpoint_is_a_name_and_no_path(tmp_path, said):
    store = HashStore()
    store.set("checkpoint/1/folder", said)
    with pytest.raises(RunError):
        rank_with(tmp_path, store, 1, seed=0)[1].write(1)


def test_only_the_last_few_stay(tmp_path):
    for step in (1, 2, 3):
        write_together(tmp_path, step, keep=2)
    assert [path.name for path in find_checkpoints(tmp_path)] == ["step-000002", "step-000003"]


def test_a_tensor_of_another_shape_is_told(tmp_path):
    write_together(tmp_path, 1)
    _, checkpoints = rank_with(tmp_path, HashStore(), 0, seed=0)
    other = replace(checkpoints, held={0: {"layer0.weight": nn.Parameter(torch.ones(3))}})
    with pytest.raises(RunError, match=r"'layer0.weight'.*torch.float32\[2, 2\].*\[3\]"):
        other.restore_weights(open_checkpoint(tmp_path / "step-000001"))


def in_folder(folder: Path, tensors: dict, source: str = "TIED = {}") -> Prepared:
    """Return a run of a folder whose first stage has some tensors."""
    folder.mkdir()
    save_file(tensors, folder / "stage_0.safetensors")
    (folder / "stage_0.py").write_text(source)
    files = (Artifact("stage_0.py", "0" * 64), Artifact("stage_0.safetensors", "0" * 64))
    return replace(PREPARED, folder=folder, plan=replace(TORCH_PLAN, artifacts=(files, ())))


def test_tensors_are_taken_by_name_and_shape_whatever_the_mode_and_the_cuts(tmp_path):
    write_together(tmp_path, 1)
    found = open_checkpoint(tmp_path / "step-000001")
    checkpoint = replace(found, state=replace(found.state, model="ef" * 32))
    both = {f"layer{n}.weight": torch.ones(2, 2) for n in (0, 1)}
    prepared = in_folder(tmp_path / "m", both, "TIED = {}\nTIED_AS = {'layer0.bias': 'layer1.bias'}")
    assert check_tensors(checkpoint, prepared.plan, prepared.folder) == [
        "step-000001 was written by a model in another mode or of other code (SHA-256 efefefefefef…): its tensors are "
        "taken by name",
        "3 tensors of step-000001 without a place in this plan: 'layer0.count', 'layer1.bias', 'layer1.count'",
    ]
    more = in_folder(tmp_path / "more", {**both, "norm.running_mean": torch.ones(3)})
    assert check_tensors(checkpoint, more.plan, more.folder)[1] == (
        "1 tensor of this plan not in step-000001, so buffers among them stay as compiled: 'norm.running_mean'"
    )
    other = in_folder(tmp_path / "other", {**both, "layer1.bias": torch.ones(3)})
    with pytest.raises(RunError, match=r"step-000001.*'layer1.bias'.*F32\[2\].*F32\[3\]"):
        check_tensors(checkpoint, other.plan, other.folder)


def test_what_is_one_tensor_in_the_model_must_be_one_in_the_checkpoint(tmp_path):
    write_together(tmp_path, 1)
    _, checkpoints = rank_with(tmp_path, HashStore(), 0, seed=0)
    tied = replace(checkpoints, tied_as={0: {"layer0.weight": "layer1.weight"}})  # which the other stage holds
    said = "step-000001.*'layer0.weight'.*'layer1.weight'"
    with pytest.raises(RunError, match=said):
        tied.restore_weights(open_checkpoint(tmp_path / "step-000001"))
    one = nn.Parameter(torch.zeros(2, 2))
    both = replace(checkpoints, held={0: {"layer0.weight": one, "layer1.weight": one}})
    with pytest.raises(RunError, match=r"'layer\d\.weight'.*'layer\d\.weight'"):
        both.restore_weights(open_checkpoint(tmp_path / "step-000001"))
    checkpoints.restore_weights(open_checkpoint(tmp_path / "step-000001"))


@pytest.mark.parametrize(
    ("changed", "given", "said"),
    [
        ({"batch": 32}, {}, r"--batch 32\b"),
        ({"seed": 3}, {}, r"\b3\b.*\b0\b.*--seed 3\b"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, changed, given, said):
    checkpoint = Checkpoint(tmp_path / "step-000005", replace(STATE, **changed))
    with pytest.raises(RunError, match=said):
        check_fits(checkpoint, PREPARED, options_in(tmp_path, **given))


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    checkpoint = Checkpoint(tmp_path / "step-000005", replace(STATE, data=CLICKS))
    fits = partial(check_fits, checkpoint, PREPARED, options_in(tmp_path))
    fits(replace(CLICKS, name="moved"))
    fits(replace(CLICKS, parts=(*CLICKS.parts, Part(50, "c"))))  # step 5 is sample 320 of the 400 that there were
    said = r"'clicks'.*\b400\b.*'tiny'.*\b3\b"
    with pytest.raises(RunError, match=rf"{said}.*--weights {tmp_path}/step-000005"):
        fits(Identity("tiny", CLICKS.columns, (Part(3, "a"),)))
    check_fits(Checkpoint(tmp_path, STATE), PREPARED, options_in(tmp_path), CLICKS)  # an earlier version did not say


def test_where_a_run_begins(tmp_path):
    folder = tmp_path / "ck"
    assert find_start(PREPARED, RunOptions(directory="m", data="x")) is None
    assert find_start(PREPARED, options_in(folder, resume=True)) is None
    (folder / "step-000005").mkdir(parents=True)
    write_state(folder / "step-000005", STATE)
    assert find_start(PREPARED, options_in(folder, resume=True)).path == folder / "step-000005"
    with pytest.raises(RunError, match=r"step-000005.*--resume"):
        find_start(PREPARED, options_in(folder))


def test_a_folder_of_checkpoints_is_no_checkpoint(tmp_path):
    options = RunOptions(directory="m", data="x", weights=str(tmp_path))
    with pytest.raises(RunError, match=r"save_file\(model\.state_dict\(\), 'init\.safetensors'\)"):
        check_weights(options, PREPARED)
    for step in ("step-000005", "step-000007"):
        (tmp_path / step).mkdir()
        (tmp_path / step / "state.json").touch()
    with pytest.raises(RunError, match=f"--weights {tmp_path}/step-000007"):
        check_weights(options, PREPARED)


def test_weights_of_another_model_are_refused(tmp_path):
    write_together(tmp_path, 1)
    options = RunOptions(directory="m", data="x", weights=str(tmp_path / "step-000001"))
    with pytest.raises(RunError, match=r"\b6\b"):
        check_weights(options, in_folder(tmp_path / "m", {"head.weight": torch.ones(2, 2)}))


def test_a_link_in_the_place_of_a_new_checkpoint_is_replaced_and_not_what_it_leads_to(tmp_path):
    """Whoever can write the folder of the checkpoints knows the name of the next one."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "mine.txt").write_text("mine")
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "step-000001").symlink_to(tmp_path / "private")
    write_together(tmp_path / "ck", 1)
    assert [path.name for path in (tmp_path / "private").iterdir()] == ["mine.txt"]
    assert [path.name for path in (tmp_path / "ck").iterdir()] == ["step-000001"]
    assert open_checkpoint(tmp_path / "ck" / "step-000001").state.step == 1


ONE, OTHER = "layer0.weight", "layer1.weight"
TIES = {
    "apart": "TIED = {}\nTIED_AS = {}",
    "in a stage": f"TIED = {{{OTHER!r}: {ONE!r}}}\nTIED_AS = {{{ONE!r}: {OTHER!r}}}",
    "across stages": f"TIED = {{}}\nTIED_AS = {{{ONE!r}: {OTHER!r}}}",
}


@pytest.mark.parametrize("there", TIES)
@pytest.mark.parametrize("here", TIES)
def test_a_run_goes_on_only_where_the_same_parameters_are_tied(there, here, tmp_path):
    tensors = {ONE: torch.ones(2, 2), OTHER: torch.ones(2, 2)}
    write_together(tmp_path, 1)
    checkpoint = tmp_path / "step-000001"
    writer = in_folder(tmp_path / "there", tensors, TIES[there])
    write_state(checkpoint, replace(open_checkpoint(checkpoint).state, tied=ties_of(writer.plan, writer.folder)))
    found = open_checkpoint(checkpoint)
    run = in_folder(tmp_path / "here", tensors, TIES[here])
    check = partial(check_tensors, plan=run.plan, folder=run.folder)
    is_tied = [tied != "apart" for tied in (there, here)]
    assert bool(found.state.tied) == is_tied[0]
    if is_tied[0] == is_tied[1]:
        check(found, resumes=True)
    else:
        counts = "one.*two" if is_tied[0] else "two.*one"
        with pytest.raises(RunError, match=rf"'{ONE}'.*'{OTHER}'.*{counts}.*--weights {checkpoint}"):
            check(found, resumes=True)
    begin = f"'{ONE}' and '{OTHER}' are one tensor in step-000001 and two here: both begin with its numbers"
    assert (begin in check(found)) == (is_tied == [True, False])
    earlier = replace(found, state=replace(found.state, tied=None))
    assert check(earlier, resumes=True) is not None


def test_a_checkpoint_knows_the_ties_of_its_plan(tmp_path):
    plan = in_folder(tmp_path / "m", {ONE: torch.ones(2, 2)}, TIES["across stages"])
    store = HashStore()
    first, other = (replace(rank_with(tmp_path / "ck", store, rank, 0)[1], prepared=plan) for rank in (0, 1))
    replace(first, store=AskingOthers(store, lambda: other.write(1))).write(1)
    assert open_checkpoint(tmp_path / "ck" / "step-000001").state.tied == ((ONE, OTHER),)
