"""Validations on stages of several backends, and with tables on parameter servers, are those of the exported model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_run_validates import COUNT, FIRST, write_validation
from torch import Tensor, nn
from written_ctrdnn import BATCH, DATA, MICRO_BATCHES, TRAINING_FILE, model, samples, write_ctrdnn

import heterps_compile

pytest.importorskip("jax", reason="jax is an extra")

STEPS = 4
WEIGHTED = """
import torch
from torch.nn import functional as F

def loss(outputs, batch):
    fit = F.mse_loss(outputs, batch["y"], reduction="none")
    return {"fit": fit, "size": 0.01 * outputs.square()}

def sample_weight(batch):
    return batch["y"].abs()

def columns(seed, count):
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(count, 8, generator=generator), "y": torch.randn(count, generator=generator)}

def data():
    return (columns(seed, 4) for seed in range(1000))

def optimizer(parameters):
    return torch.optim.Adam([parameter for _, parameter in parameters], lr=0.01)
"""
VALIDATING = """
def validation_data():
    yield columns(-1, 18)

def metrics(outputs, batch):
    return {"bias": outputs - batch["y"]}
"""


class Net(nn.Module):
    """What differs between training and scoring: batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.second(self.drop(hidden)))).squeeze(1)


def exported(checkpoint: str, module: nn.Module, folder: Path, **options: Any) -> nn.Module:
    """Return a module with the weights of a checkpoint, in evaluation mode."""
    heterps_compile.export_checkpoint(checkpoint, folder / "weights.safetensors", model=module, **options)
    module.load_state_dict(load_file(folder / "weights.safetensors"))
    return module.eval()


@pytest.mark.slow  # three runs
def test_validations_on_stages_of_jax_are_those_of_the_module_and_change_nothing(tmp_path):
    compiled = heterps_compile.compile(
        Net(),
        (torch.randn(4, 8),),
        method="greedy",
        mode="training",
        backend="cpu-core=jax,v100=torch",
        pins={"linear": "cpu-core", "linear_*": "v100"},
        min_stages=2,
        max_stages=2,
        min_throughput=1000,
        verify=False,
    )
    assert [stage.backend for stage in compiled.plan.stages] == ["jax", "torch"]
    compiled.save(tmp_path / "net.heterps")
    (tmp_path / "plain.py").write_text(WEIGHTED)
    (tmp_path / "train.py").write_text(WEIGHTED + VALIDATING)

    def trained(train: str, **options: Any) -> Any:
        folder = str(tmp_path / train)
        size: Any = {"steps": STEPS, "batch": BATCH, "micro_batches": MICRO_BATCHES, "replicas": (1, 1)}
        script = tmp_path / f"{train}.py"
        return heterps_compile.run(
            tmp_path / "net.heterps", train=script, checkpoint=folder, quiet=True, **size, **options
        )

    plain = trained("plain", ema=0.9)
    result = trained("train", ema=0.9, validate_every=1, keep_best="loss/fit:min")
    for one in sorted(Path(plain.checkpoint).glob("*.safetensors")):
        assert one.read_bytes() == (Path(result.checkpoint) / one.name).read_bytes(), "no bit is trained otherwise"
    averaged = exported(result.checkpoint, Net(), tmp_path, averaged=True)
    names: dict[str, Any] = {}
    exec(WEIGHTED, names)  # noqa: S102 - the training file of this very test
    columns = names["columns"](-1, 18)
    with torch.no_grad():
        outputs = averaged(columns["x"])
    weights = columns["y"].abs().double()
    values = {**names["loss"](outputs, columns), "bias": outputs - columns["y"]}
    means = {name: float((weights * value).sum() / weights.sum()) for name, value in values.items()}
    found = result.validations[-1].metrics
    assert list(found) == ["loss", "loss/fit", "loss/size", "bias"]
    assert found["loss"] == pytest.approx(means["fit"] + means["size"], rel=1e-5)
    assert [found["loss/fit"], found["loss/size"], found["bias"]] == pytest.approx(list(means.values()), rel=1e-4)
    assert result.validations[result.best_step - 1].metrics["loss/fit"] == min(
        one.metrics["loss/fit"] for one in result.validations
    )


@pytest.mark.slow  # a run with servers
def test_validations_with_tables_on_servers_are_those_of_the_exported_model(tmp_path):
    compiled = write_ctrdnn(tmp_path, dense_backend="jax")
    (tmp_path / "train.py").write_text(TRAINING_FILE)
    result = heterps_compile.run(
        compiled,
        train=tmp_path / "train.py",
        data=DATA,
        validate=str(write_validation(tmp_path)),
        validate_every=2,
        steps=STEPS,
        batch=BATCH,
        micro_batches=MICRO_BATCHES,
        replicas=(1, 1),
        parameter_servers=1,
        server_learning_rate=0.5,
        checkpoint=str(tmp_path / "ck"),
        quiet=True,
    )
    module = exported(result.checkpoint, model()[0], tmp_path)
    columns = samples(FIRST, COUNT)
    with torch.no_grad():
        outputs = module(columns["sparse"], columns["dense"])
    loss = float(nn.functional.binary_cross_entropy_with_logits(outputs, columns["label"]))
    assert [one.step for one in result.validations] == [2, STEPS]
    assert result.validations[-1].metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert result.validations[0].metrics["loss"] != pytest.approx(loss, rel=1e-5), "the tables have been trained"
