"""The precision of a run: what goes with it and what is refused, by name, before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest
from plans import PLAN

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.checkpoint.format import open_checkpoint, write_state
from heterps_compile.runtime.checkpoint.state import RunState
from heterps_compile.runtime.launch.prepare import precision_of
from heterps_compile.runtime.launch.rank_context import Result, result_from_json
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.run_report import result_lines
from heterps_compile.runtime.launch.server_options import ServerOptions
from heterps_compile.runtime.pipeline.scaling import Scaling


def of_torch(*, replicated: tuple[str, ...] = ()) -> Plan:
    return replace(PLAN, stages=tuple(replace(s, backend="torch") for s in PLAN.stages), replicated=replicated)


def options(**more: object) -> RunOptions:
    return RunOptions(directory="m.heterps", train="train.py", **more)  # type: ignore[arg-type]


def test_what_goes_with_a_precision_goes():
    servers = ServerOptions(count=2)
    assert precision_of(options(), of_torch()) == "fp32"
    assert precision_of(options(precision="bf16", servers=servers), of_torch()) == "bf16"
    assert precision_of(options(precision="fp16", wire="float16"), of_torch()) == "fp16"
    assert precision_of(RunOptions(directory="m.heterps", data="x.tsv", precision="fp16"), of_torch()) == "fp16"


def test_a_run_takes_the_precision_of_its_plan_and_refuses_in_its_name():
    planned = replace(of_torch(), request=replace(PLAN.request, precision="bf16"))
    assert precision_of(options(), planned) == "bf16"
    assert precision_of(options(precision="fp32"), planned) == "fp32"
    with pytest.raises(RunError, match=r"bf16.*bfloat16.*--wire"):
        precision_of(options(wire="float16"), planned)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"wire": "float16"}, "sends what it computes as bfloat16, and --wire float16 would send"),
        ({"precision": "fp16", "servers": ServerOptions(count=2)}, "--precision fp16 and --parameter-servers do not"),
    ],
)
def test_options_that_contradict_it_are_refused_by_name(more, words):
    with pytest.raises(RunError) as refused:
        precision_of(options(**{"precision": "bf16", **more}), of_torch(replicated=("embed.weight",)))
    assert words in str(refused.value)


def test_stages_of_other_frameworks_and_unknown_names_are_refused():
    stages = (replace(of_torch().stages[0], backend="jax"), *of_torch().stages[1:])
    with pytest.raises(RunError, match=r"stage 0\b.*'jax'"):
        precision_of(options(precision="bf16"), replace(PLAN, stages=stages))
    with pytest.raises(UnknownNameError, match="'half'"):
        options(precision="half")


def test_a_checkpoint_keeps_the_scale_and_an_earlier_one_had_none(tmp_path: Path):
    scaling = Scaling(scale=1024.0, growth_tracker=7, skipped=3)
    state = RunState(2, 8, 4, 0, "m", "p", (), precision="fp16", scaling=scaling)
    write_state(tmp_path, state)
    assert replace(open_checkpoint(tmp_path).state, files=None) == state
    write_state(tmp_path, replace(state, precision="int3"))
    with pytest.raises(RunError, match="'int3'"):
        open_checkpoint(tmp_path)


def test_skipped_steps_are_counted_in_the_summary():
    result = Result(0, 10, 8, skipped=2)
    assert result_from_json(result.to_json().encode()) == result
    assert "2 steps skipped: gradients were not finite in float16, and the loss scale was halved" in result_lines(
        result, None
    )
