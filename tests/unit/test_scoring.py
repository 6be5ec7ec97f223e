"""What is compiled for training scores as the module does after ``eval()``, and the module comes back as it was."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional

import heterps_compile
from heterps_compile.compiled_model import CompiledModel
from heterps_compile.errors import BackendError, RunError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.frontends.torch_modes import training_nodes
from heterps_compile.plan.scoring_files import plan_for_scoring
from heterps_compile.runtime.launch.prepare import header, prepare
from heterps_compile.runtime.launch.run_options import RunOptions


class Frozen(nn.Module):
    """Dropout, batch norms one of which is frozen, a tied weight, and a second head for training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(20, 16)
        self.first, self.norm, self.drop = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.second, self.frozen = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.head, self.other_head = nn.Linear(16, 20, bias=False), nn.Linear(16, 4)
        self.head.weight = self.rows.weight

    def forward(self, ids: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        hidden = self.drop(torch.relu(self.norm(self.first(self.rows(ids).mean(1)))))
        hidden = functional.dropout(self.frozen(self.second(hidden)), 0.3, self.training)
        return (self.head(hidden), self.other_head(hidden)) if self.training else self.head(hidden)


def frozen() -> tuple[Frozen, Tensor]:
    torch.manual_seed(0)
    module = Frozen().train()
    for norm in (module.norm, module.frozen):
        nn.init.normal_(norm.running_mean)
    module.frozen.eval()
    return module, torch.randint(0, 20, (6, 3))


def compiled(module: nn.Module, *inputs: Tensor, **given) -> CompiledModel:
    given = {"mode": "training", "method": "greedy", "min_stages": 2, "max_stages": 2, **given}
    return heterps_compile.compile(module, inputs, **given)


def scored_by(module: nn.Module, *inputs: Tensor) -> Tensor:
    """Return what a module returns in evaluation mode, and put its modes back."""
    modes = [(one, one.training) for one in module.modules()]
    module.eval()
    with torch.no_grad():
        found = module(*inputs)
    for one, mode in modes:
        one.training = mode
    return found


def difference(one, other) -> float:
    """Return the largest difference relative to the scale."""
    ours, theirs = torch.as_tensor(one).detach(), torch.as_tensor(other).detach()
    return float((ours - theirs).abs().max() / theirs.abs().max())


MIXED = {"backend": "cpu-core=torch,v100=jax", "pins": {"embedding": "cpu-core", "linear*": "v100"}}


@pytest.fixture(
    scope="module", params=["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jax", "mixed"))]
)
def frozen_in_two(request, tmp_path_factory) -> tuple[Frozen, Tensor, CompiledModel, Path]:
    """Return the module, ids, what it was compiled to, and the folder that it was saved in."""
    if request.param != "torch":
        pytest.importorskip("jax")
    module, ids = frozen()
    made = compiled(module, ids, **(MIXED if request.param == "mixed" else {"backend": request.param}))
    folder = tmp_path_factory.mktemp(request.param) / "m.heterps"
    return module, ids, made.save(folder), folder


@pytest.mark.slow  # whole models, compiled and run
def test_a_folder_compiled_for_training_scores_as_the_module_does(frozen_in_two):
    module, ids, made, folder = frozen_in_two
    wanted = scored_by(module, ids)
    assert made.plan.scoring.refused == ""
    assert made.plan.scoring.verification.max_rel < 1e-6
    assert difference(made.eval().run(ids), wanted) < 1e-6
    loaded = heterps_compile.load(folder).eval()
    for _ in range(2):  # nothing moves
        assert difference(loaded.run(ids), wanted) < 1e-6
    assert loaded.eval().plan == loaded.plan


@pytest.mark.slow  # torch.export takes seconds
def test_the_stages_in_evaluation_mode_read_the_weights_of_the_others(frozen_in_two):
    _, _, made, folder = frozen_in_two
    weights = {path.name for path in folder.glob("*.safetensors")}
    assert weights == {"stage_0.safetensors", "stage_1.safetensors"}
    assert {artifacts[1].file for artifacts in made.plan.scoring.artifacts} == weights
    assert [path.name for path in folder.glob("*_scoring.py")] != []
    assert [path.name for path in folder.iterdir() if path.is_dir()] == []


def test_a_rank_that_does_not_train_reads_the_stages_that_score(frozen_in_two):
    _, _, made, folder = frozen_in_two
    options = RunOptions(directory=str(folder), data="random")
    prepared = prepare(options)
    assert [artifacts[0].file for artifacts in prepared.plan.artifacts] != [
        artifacts[0].file for artifacts in made.plan.artifacts
    ]
    assert len(prepared.plan.graph_outputs) == 1
    words = header(prepared, options, ["cpu", "cpu"])[0]
    assert words.startswith("Frozen: scoring in evaluation mode of a folder compiled for training, 2 stages")


def test_the_module_comes_back_as_it_was():
    module, ids = frozen()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes, drawn = [one.training for one in module.modules()], torch.get_rng_state()
    compiled(module, ids)
    assert [one.training for one in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_what_was_trained_is_what_scores_and_the_training_stays_one():
    module, ids = frozen()
    made = compiled(module, ids)
    logits, others = made.run(ids)
    (logits.sum() + others.sum()).backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(0.1 * parameter.grad)
    assert not torch.equal(made.run(ids)[0], made.run(ids)[0])  # it drops
    assert difference(made.eval().run(ids), scored_by(module, ids)) < 1e-6
    mean, still = module.norm.running_mean.clone(), module.frozen.running_mean.clone()
    made.run(ids)
    assert not torch.equal(module.norm.running_mean, mean)
    assert torch.equal(module.frozen.running_mean, still)


def test_what_is_trained_in_the_stages_of_a_loaded_folder_is_what_scores(tmp_path):
    module, ids = frozen()
    compiled(module, ids).save(tmp_path / "m.heterps")
    loaded = heterps_compile.load(tmp_path / "m.heterps")
    scoring = loaded.eval()
    with torch.no_grad():
        for stage in loaded.stages:
            for name, tensor in stage.state_dict(keep_vars=True).items():
                if name.startswith(("first", "norm.running")):
                    tensor.add_(0.5)
        for tensor in (*module.first.parameters(), module.norm.running_mean, module.norm.running_var):
            tensor.add_(0.5)
    assert difference(scoring.run(ids), scored_by(module, ids)) < 1e-6


def test_a_stage_does_not_pretend_to_have_another_mode():
    module, ids = frozen()
    made = compiled(module, ids)
    assert made.stages[0].train() is made.stages[0]
    with pytest.raises(BackendError, match="evaluation"):
        made.stages[0].eval()
    with pytest.raises(BackendError, match="training"):
        nn.ModuleList(made.eval().stages).train()


class Drawing(nn.Module):
    """Everything of PyTorch that is another thing in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.3, batch_first=True)
        self.recurrent = nn.LSTM(16, 16, 2, dropout=0.4, batch_first=True)
        self.norms = nn.ModuleList([nn.BatchNorm1d(5), nn.InstanceNorm1d(5, track_running_stats=True)])
        self.drops = nn.ModuleList([nn.Dropout1d(0.3), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3), nn.RReLU()])
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.recurrent(self.attention(self.layer(x), x, x, need_weights=False)[0])[0]
        for one in (*self.norms, *self.drops):
            x = one(x)
        x = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0)
        x = nn.functional.dropout(x, 0.5, self.training, inplace=True)
        return self.head(x)


def test_whatever_is_another_thing_in_training_is_not_in_scoring():
    torch.manual_seed(0)
    module, x = Drawing().train(), torch.randn(4, 5, 16)
    made = compiled(module, x, min_stages=3, max_stages=3)
    assert made.plan.scoring.refused == ""
    assert difference(made.eval().run(x), scored_by(module, x)) < 1e-6


def test_a_traced_module_scores_in_evaluation_mode(tmp_path):
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8))
    whole[4].eval()
    traced, x = torch.fx.symbolic_trace(whole), torch.randn(6, 4)
    made = compiled(traced, x)
    assert difference(made.eval().run(x), scored_by(whole, x)) < 1e-6
    assert [module.training for module in (whole, whole[1], whole[4])] == [True, True, False]
    made.save(tmp_path / "m.heterps")
    assert difference(heterps_compile.load(tmp_path / "m.heterps").eval().run(x), scored_by(whole, x)) < 1e-6


def test_where_both_modes_are_one_there_is_one_set_of_files(tmp_path):
    whole = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).train()
    made = compiled(whole, torch.randn(6, 4)).save(tmp_path / "m.heterps")
    assert made.plan.scoring.artifacts == made.plan.artifacts
    made.stages[0].eval()
    assert list((tmp_path / "m.heterps").glob("*_scoring*")) == []


class Merging(nn.Module):
    """A layer that merges a second weight into its first one for evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.extra = nn.Parameter(torch.ones(4, 4))

    def train(self, mode: bool = True) -> "Merging":
        if mode != self.training:
            with torch.no_grad():
                self.layers[0].weight += -self.extra if mode else self.extra
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + (x @ self.extra if self.training else 0)


def test_what_cannot_score_says_so_and_refuses(tmp_path):
    module, x = Merging(), torch.randn(2, 4)
    before = module.layers[0].weight.detach().clone()
    made = compiled(module, x).save(tmp_path / "m.heterps")
    assert torch.allclose(module.layers[0].weight, before)
    assert module.training
    said = "eval() of the model changes 'layers.0.weight'"
    assert [note for note in made.plan.notes if note.startswith("this folder trains and cannot score") and said in note]
    for refused in (made.eval, heterps_compile.load(tmp_path / "m.heterps").eval):
        with pytest.raises(RunError, match=r"'Merging'.*score"):
            refused()
    with pytest.raises(RunError, match=r"'layers\.0\.weight'"):
        prepare(RunOptions(directory=str(tmp_path / "m.heterps"), data="random"))
    prepare(RunOptions(directory=str(tmp_path / "m.heterps"), data="random", train="<object>"))
    with pytest.raises(RunError, match=r"version.*compile"):
        plan_for_scoring(replace(made.plan, scoring=None))


def test_an_exported_program_in_training_mode_has_no_other(tmp_path):
    whole = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    x = torch.randn(6, 4)
    made = compiled(torch.export.export(whole.train(), (x,)))
    assert "was exported in training mode (node 'dropout')" in made.plan.scoring.refused
    assert compiled(torch.export.export(whole.eval(), (x,))).plan.scoring.refused == ""


def test_training_is_seen_by_flags_and_amounts():
    class Some(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = functional.dropout(x, 0.0, training=True)
            x = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
            return functional.rrelu(functional.dropout(x, 0.5, training=False), training=True)

    found = training_nodes(import_torch(Some(), (torch.randn(2, 3, 4),)))
    assert [name.split("_")[0] for name in found] == ["scaled", "rrelu"]


def test_an_onnx_model_drops_nothing_when_it_scores(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Dropout", ["h", "ratio", "on"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    described = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x", "y")]
    constants = [
        helper.make_tensor("w", TensorProto.FLOAT, [4, 4], torch.eye(4).flatten().tolist()),
        helper.make_tensor("ratio", TensorProto.FLOAT, [], [0.5]),
        helper.make_tensor("on", TensorProto.BOOL, [], [True]),
    ]
    graph = helper.make_graph(nodes, "drops", [described[0]], [described[1]], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "d.onnx")
    made = compiled(tmp_path / "d.onnx", backend="torch").save(tmp_path / "m.heterps")
    x = torch.randn(2, 4)
    assert difference(made.run(x)[0], x) > 0.1
    for one in (made, heterps_compile.load(tmp_path / "m.heterps")):
        assert difference(one.eval().run(x)[0], x) < 1e-6


def test_what_was_compiled_for_inference_is_not_trained_without_its_dropout(tmp_path):
    module, ids = frozen()
    made = compiled(module.eval(), ids, mode="inference").save(tmp_path / "m.heterps")
    assert made.plan.scoring is None
    assert made.eval().plan == made.plan
    with pytest.raises(RunError, match="--mode"):
        prepare(RunOptions(directory=str(tmp_path / "m.heterps"), data="random", train="<object>"))


def test_a_mode_that_is_not_the_one_asked_for_is_told():
    module, ids = frozen()
    (note,) = [n for n in compiled(module, ids, mode="inference").plan.notes if "given in" in n]
    assert note.startswith("the model was given in training mode: 'batch_norm' and whatever else drops at random")
    (note,) = [n for n in compiled(module.eval(), ids).plan.notes if "given in" in n]
    assert note.startswith("the model was given in evaluation mode: it trains without dropout")
    plain = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 4), nn.Dropout(0.0)
    )
    for mode in ("training", "inference"):
        assert [n for n in compiled(plain.eval(), torch.randn(2, 4), mode=mode).plan.notes if "given in" in n] == []
        assert [n for n in compiled(plain.train(), torch.randn(2, 4), mode=mode).plan.notes if "given in" in n] == []


@pytest.mark.parametrize("trains", [True, False])
def test_a_model_has_the_same_tensors_in_both_modes_so_checkpoints_go_both_ways(tmp_path, trains):
    module, ids = frozen()
    in_two = compiled(module.train(), ids)
    in_three = compiled(module.eval(), ids, mode="training" if trains else "inference", min_stages=3, max_stages=3)
    one, other = ({n: t.shape for s in made.stages for n, t in s.state_dict().items()} for made in (in_two, in_three))
    assert {name: one[name] for name in other} == other
    assert {name for name in one if name not in other} == {"other_head.weight", "other_head.bias"}
