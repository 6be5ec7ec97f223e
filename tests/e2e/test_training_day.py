"""The training day: what its page types prints what the page says, and ends where plain PyTorch ends.

The same day goes on through a killed process and other widths, and ends there too.
"""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from processes import PATIENCE_S, ranks_of
from typed_pages import check_page, commands
from written_ctrdnn import weights_in

from heterps_compile.cli.main import command as heterps
from heterps_compile.plan.source import read_plan

PAGE = Path(__file__).parents[2] / "docs" / "training-day.md"
BEST_STEP, BATCH = 1000, 1000
TYPED = "typed.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # a million samples


@pytest.fixture(scope="module")
def day(tmp_path_factory, pytestconfig) -> Path:
    """Return the folder in which the page was typed."""
    folder = tmp_path_factory.mktemp("day")
    typed = check_page(PAGE, folder, update=pytestconfig.getoption("--update-golden"))
    (folder / TYPED).write_text(typed, "utf-8")
    return folder


@pytest.fixture(scope="module")
def of_the_page(day) -> Iterator[None]:
    """Let the page's modules be imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(day)
        yield
    for name in ("make_data", "click_model", "train"):
        sys.modules.pop(name, None)


def columns(path: Path) -> dict[str, torch.Tensor]:
    table = pq.read_table(path).combine_chunks()
    found = {name: table[name].chunk(0) for name in table.column_names}
    return {
        name: torch.from_numpy((one.flatten() if name != "label" else one).to_numpy().copy()).reshape(len(table), -1)
        for name, one in found.items()
    }


def trained_plainly(day: Path, micro_batches_of: Callable[[int], int]) -> tuple[dict[str, torch.Tensor], float]:
    """Return weights and AUC of a plain PyTorch loop over the same micro-batches, after the page's best step."""
    from torchmetrics.classification import BinaryAUROC  # noqa: PLC0415 - seconds, and only here

    train, model_file = importlib.import_module("train"), importlib.import_module("click_model")
    torch.manual_seed(0)
    model = model_file.ClickModel()
    optimizer = train.optimizer(model.named_parameters())
    clicks, held_back = columns(day / "clicks.parquet"), columns(day / "held_back.parquet")
    for step in range(BEST_STEP):
        micro_batches = micro_batches_of(step)
        optimizer.zero_grad()
        for begin in range(step * BATCH, (step + 1) * BATCH, BATCH // micro_batches):
            part = {name: column[begin : begin + BATCH // micro_batches] for name, column in clicks.items()}
            found = train.loss(model(part["ids"], part["numbers"]), {"label": part["label"].flatten()})
            (found / micro_batches).backward()
        optimizer.step()
    # by micro-batches as well: a sigmoid rounds the last rows of an array otherwise, which parts scores that are equal
    auc, size = BinaryAUROC(), BATCH // micro_batches_of(BEST_STEP)
    with torch.no_grad():
        for begin in range(0, len(held_back["label"]), size):
            part = {name: column[begin : begin + size] for name, column in held_back.items()}
            auc.update(model.eval()(part["ids"], part["numbers"]), part["label"].flatten().int())
    return model.state_dict(), float(auc.compute())


def micro_batches_planned(day: Path) -> int:
    return read_plan(str(day / "click.heterps")).schedule.micro_batches


def assert_is_plain(checkpoint: Path, plain: tuple[dict[str, torch.Tensor], float]) -> None:
    """Hold a checkpoint against the plain loop: weights bit by bit, the AUC to the rounding of its sum."""
    weights, auc = plain
    ours = weights_in(checkpoint)
    assert ours.keys() == weights.keys()
    assert [name for name, tensor in ours.items() if not torch.equal(tensor, weights[name])] == []
    assert json.loads((checkpoint / "state.json").read_text())["metrics"]["auc"] == pytest.approx(auc, abs=1e-6)


@pytest.mark.usefixtures("of_the_page")
def test_the_day_ends_where_plain_pytorch_ends(day):
    plain = trained_plainly(day, lambda _: micro_batches_planned(day))
    assert_is_plain(day / "checkpoints" / f"step-{BEST_STEP:06d}", plain)
    told = re.search(r"^AUC with ONNX Runtime (\d\.\d+)$", (day / TYPED).read_text("utf-8"), re.MULTILINE)
    assert told is not None
    assert float(told[1]) == pytest.approx(plain[1], abs=1e-4)


@pytest.mark.usefixtures("of_the_page")
def test_the_day_goes_on_through_a_killed_process_and_other_widths(day):
    typed = next(line for line in commands(PAGE.read_text("utf-8")) if line.startswith("heterps-compile run "))
    words = typed.partition(" | ")[0].split()[1:]
    words[words.index("--checkpoint") + 1] = "disturbed"
    words[words.index("--every") + 1] = "100"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "heterps_compile", *words, "--log", "disturbed.jsonl"]
    command += ["--keep", "100", "--restarts", "2"]
    with subprocess.Popen(
        command, cwd=day, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as run:

        def wait_for(step: int) -> None:
            began_s = time.monotonic()
            while not (day / "disturbed" / f"step-{step:06d}" / "state.json").exists():
                assert run.poll() is None, run.stdout and run.stdout.read()
                assert time.monotonic() - began_s < PATIENCE_S
                time.sleep(0.02)

        wait_for(200)
        os.kill(ranks_of(run.pid)[-1], signal.SIGKILL)
        wait_for(300)
        resized = CliRunner().invoke(
            heterps, ["resize", str(day / "disturbed"), "--replicas", "2,1", "--micro-batches", "2"]
        )
        assert resized.output == "replicas 1, 1 until this step is done, then 2, 1\n"
        told, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, told
    assert "1,500 steps, 1,500,000 samples\n1 restart after a failed process\n1 resize\n" in told
    lines = [json.loads(line) for line in (day / "disturbed.jsonl").read_text().splitlines()]
    ranks_in = {line["step"]: len(line["ranks"]) for line in lines if "step" in line}  # of a step done twice, the last
    assert set(ranks_in) == set(range(1500))
    resized_at = min(step for step, ranks in ranks_in.items() if ranks == 3)
    assert resized_at >= 300
    plain = trained_plainly(day, lambda step: micro_batches_planned(day) if step < resized_at else 2)
    assert_is_plain(day / "disturbed" / f"step-{BEST_STEP:06d}", plain)
