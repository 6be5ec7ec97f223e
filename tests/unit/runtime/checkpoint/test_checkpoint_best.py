"""The best checkpoint of a folder follows from what each has of its own validation."""

import json
from pathlib import Path

import pytest

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.runtime.checkpoint.best import check_judged_alike, find_best, standing_at
from heterps_compile.runtime.checkpoint.folder import find_checkpoints, keep_last, step_name
from heterps_compile.runtime.checkpoint.format import RunState, open_checkpoint, sealed, write_state
from heterps_compile.runtime.data.identity import Identity, Part
from heterps_compile.runtime.validation.best import BEFORE_ANY, Best, parse_best

VALID = Identity("valid.parquet", ("label", "x"), (Part(100, "ab"),))
AUC = parse_best("auc:max")


def written(folder: Path, **aucs: float | None) -> Path:
    """Write a checkpoint after every step that is named, as in ``s10=0.7``; None was not validated."""
    count = 0
    for name, auc in aucs.items():
        step = int(name[1:])
        count += auc is not None
        metrics = None if auc is None else {"loss": 1 - auc, "auc": auc}
        checkpoint = folder / step_name(step)
        checkpoint.mkdir(parents=True)
        state = RunState(step, 2 * step, 2, 0, "m", "p", (0,), metrics=metrics, validations=count)
        write_state(checkpoint, state if auc is None else with_data(state))
    return folder


def with_data(state: RunState) -> RunState:
    from dataclasses import replace  # noqa: PLC0415 - beside its one use

    return replace(state, keep_best="auc:max", validation_data=VALID)


def test_the_best_is_the_one_whose_metrics_are(tmp_path):
    folder = written(tmp_path, s10=0.70, s20=0.74, s25=None, s30=0.74, s40=0.72)
    assert find_best(folder) == folder / "step-000020"
    assert find_best(folder, parse_best("auc:min")) == folder / "step-000010"
    assert find_best(folder, parse_best("error:min")) is None
    assert find_best(written(tmp_path / "other", s1=None)) is None


def test_a_run_that_goes_on_stands_where_the_one_before_did(tmp_path):
    folder = written(tmp_path, s10=0.70, s20=0.74, s30=0.73, s35=None, s40=0.72)
    standing = standing_at(open_checkpoint(folder / "step-000040"), AUC)
    assert (standing.validations, standing.best, standing.stale) == (4, Best(20, 0.74, 2), 2)
    before = standing_at(open_checkpoint(folder / "step-000030"), AUC)
    assert (before.validations, before.stale) == (3, 1)
    assert standing_at(open_checkpoint(folder / "step-000040"), None).best is None
    assert standing_at(None, AUC) == BEFORE_ANY


def test_the_best_one_is_spared_beside_the_last(tmp_path):
    folder = written(tmp_path, s10=0.70, s20=0.74, s30=0.73, s40=0.72)
    keep_last(folder, 2, "step-000020")
    assert [one.name for one in find_checkpoints(folder)] == ["step-000020", "step-000030", "step-000040"]
    keep_last(folder, 1, "step-000040")
    assert [one.name for one in find_checkpoints(folder)] == ["step-000040"]


def test_a_run_is_not_judged_by_other_data_or_a_metric_that_no_checkpoint_has(tmp_path):
    folder = written(tmp_path, s10=0.70, s20=0.74)
    check_judged_alike(open_checkpoint(folder / "step-000020"), AUC, VALID)
    other = Identity("new.parquet", VALID.columns, (Part(90, "cd"),))
    told = "'valid.parquet'.*100.*'new.parquet'"
    with pytest.raises(RunError, match=told):
        check_judged_alike(open_checkpoint(folder / "step-000020"), AUC, other)
    with pytest.raises(UnknownNameError, match=r"--keep-best.*'acc'.*'auc'"):
        check_judged_alike(open_checkpoint(folder / "step-000020"), parse_best("acc:max"), VALID)


@pytest.mark.parametrize(
    "changed",
    [
        {"metrics": {"auc": "high"}},
        {"metrics": {"\x1b": 1.0}},
        {"metrics": 3},
        {"validations": -1},
        {"keep_best": "auc"},
    ],
)
def test_a_manifest_whose_metrics_are_none_is_damaged(tmp_path, changed):
    checkpoint = written(tmp_path, s10=0.7) / "step-000010"
    path = checkpoint / "state.json"
    content = json.loads(path.read_bytes().partition(b"\n}")[0] + b"\n}")
    path.write_bytes(sealed(json.dumps({**content, **changed}, indent=2)))
    with pytest.raises(RunError, match=r"state\.json'"):
        open_checkpoint(checkpoint)
