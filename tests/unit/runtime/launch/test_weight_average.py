"""The average of weights: bit by bit that of torch.optim.swa_utils, lent to validations and given back."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hand_made import HandMade, engine_of, reader
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.format import Checkpoint, open_checkpoint, write_state
from heterps_compile.runtime.checkpoint.start import average_notes
from heterps_compile.runtime.checkpoint.state import Averaged, RunState
from heterps_compile.runtime.launch.loop import FollowUps, StepLoop
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.weight_average import WeightAverage
from heterps_compile.runtime.pipeline.scaling import Scaling

DECAY, STEPS, POISONED = 0.9, 5, 2


def stages() -> list[HandMade]:
    def run(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        return (functional.linear(stage.norm(x), stage.weight),)

    return [HandMade("x", "a", run), HandMade("a", "y", run)]


def loss_of(outputs: list[Any], columns: dict[str, Tensor]) -> Tensor:
    return functional.mse_loss(outputs[0].sum(1), columns["label"]) * columns["importance"]


def read(step: int) -> Any:
    """Read a step's data; in one step they are too large for float16."""

    def call(micro_batch: int, names: Any) -> Any:
        importance = torch.tensor(1e30 if step == POISONED else 1.0)
        columns = dict(reader(step, [])(micro_batch, names))
        return columns | {"importance": importance} if tuple(names) == ("*",) else columns

    return call


def state_of(modules: list[HandMade]) -> dict[str, Tensor]:
    return {key: tensor.detach().clone() for key, tensor in nn.ModuleList(modules).state_dict().items()}


class AtEveryStep:
    """A validator that keeps the weights it finds in the stages."""

    is_over = False

    def __init__(self, modules: list[HandMade]) -> None:
        self.modules, self.found = modules, list[dict[str, Tensor]]()
        self.times, self.standing = SimpleNamespace(are_due=lambda done: True), SimpleNamespace(best=None)

    def run(self, done: int) -> Any:
        self.found.append(state_of(self.modules))
        return SimpleNamespace(is_best=False, metrics={})

    def at(self, done: int) -> None:
        return None


def trained(*, ema: float | None, steps: int = STEPS) -> tuple[list[HandMade], WeightAverage | None, AtEveryStep]:
    """Train in float16 on one rank, with a validation after every step."""
    made = stages()
    engine = engine_of(0, made, "y", (1,), loss_of, "interleaved-1f1b", precision="fp16", scaling=Scaling(scale=2.0**4))
    average = None if ema is None else WeightAverage(ema, {i: s.state_dict(keep_vars=True) for i, s in enumerate(made)})
    validator: Any = AtEveryStep(made)
    optimizer = torch.optim.SGD([p for s in made for p in s.parameters()], lr=0.1, momentum=0.9)
    reads: Any = SimpleNamespace(of_step=read)
    watch: Any = SimpleNamespace(may_begin=lambda step: True)
    follow_ups = FollowUps(optimizer=optimizer, validator=validator, average=average)
    StepLoop(engine, reads, range(steps), watch, ProgressRecorder()).train(follow_ups)
    engine.finish()
    return made, average, validator


def test_validations_are_of_the_average_of_torch_and_training_goes_on_as_if_there_were_none():
    made, average, validator = trained(ema=DECAY)
    plain, _, at_every_step = trained(ema=None)
    for key, tensor in state_of(plain).items():
        assert torch.equal(tensor, state_of(made)[key]), f"{key} is trained to the same bits"
    oracle = AveragedModel(nn.ModuleList(stages()), multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    assert average is not None
    assert average.updates == STEPS - 1
    for step, weights in enumerate(at_every_step.found):
        if step != POISONED:  # a skipped step moves nothing
            module = nn.ModuleList(stages())
            module.load_state_dict(weights)
            oracle.update_parameters(module)
        for key, expected in oracle.module.state_dict().items():
            assert torch.equal(validator.found[step][key], expected), (step, key)
    for index in range(2):
        for name, tensor in average.of_stage(index).items():
            assert torch.equal(tensor, oracle.module.state_dict()[f"{index}.{name}"])


def test_weights_come_back_bit_for_bit_whatever_happens_meanwhile():
    made = stages()
    made[0].weight.data[0, 0] = float("nan")
    before = state_of(made)
    average = WeightAverage(DECAY, {i: s.state_dict(keep_vars=True) for i, s in enumerate(made)})
    average.of_stage(1)["weight"].zero_()

    def fail() -> None:
        with average.in_place():
            assert not made[1].weight.any()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(made).items() if name != "0.weight")
    assert torch.equal(made[0].weight.view(torch.int32), before["0.weight"].view(torch.int32)), "NaN too"


def test_weights_of_few_bits_have_an_average_in_float32_and_tied_ones_one():
    half = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    average = WeightAverage(0.999, {0: {"a": half, "b": half}, 1: {"a": half}})
    average.update()
    half.data.fill_(2.0)
    average.update()
    found = average.of_stage(0)
    assert found["a"] is found["b"] is average.of_stage(1)["a"]
    assert found["a"].dtype is torch.float32
    assert found["a"].tolist() == pytest.approx([1.001, 1.001], rel=1e-6), "no number of bfloat16"
    average.begin()
    assert (average.updates, found["a"].tolist()) == (0, [2.0, 2.0])


def test_a_checkpoint_says_what_becomes_of_its_average(tmp_path: Path):
    without = RunState(3, 12, 4, 0, "m", "p", ())
    state = replace(without, averaged=Averaged(0.999, 3))
    write_state(tmp_path, state)
    assert replace(open_checkpoint(tmp_path).state, files=None) == state
    options = RunOptions(directory="m", train="train.py")
    found = Path("step-000003")
    average = "step-000003 has an average of its weights (EMA, decay 0.999), which "

    def notes(of: RunState, *, resumes: bool = True, **more: Any) -> list[str]:
        return average_notes(Checkpoint(found, of), replace(options, **more), resumes=resumes)

    assert notes(state, ema=0.999) == notes(without) == notes(without, resumes=False) == []
    assert notes(state) == [f"{average}is left: --ema 0.999 goes on with it"]
    assert notes(state, ema=0.99) == [f"{average}goes on with 0.99"]
    assert notes(without, ema=0.99) == ["step-000003 has no average of its weights: one begins after the next step"]
    assert notes(state, resumes=False) == [f"{average}is left: --averaged takes it in place of the weights"]
    taken = {"weights": "ck/step-000003", "averaged": True}
    assert notes(state, resumes=False, **taken) == [f"{average}is taken; the weights themselves are left"]
    write_state(tmp_path, replace(without, averaged=None))
    (tmp_path / "state.json").write_text(
        (tmp_path / "state.json").read_text().replace('"averaged": null', '"averaged": 1')
    )
    with pytest.raises(RunError):
        open_checkpoint(tmp_path)
