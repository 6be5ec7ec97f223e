"""Options of a run: checked when made, the same after a journey through a file."""

import stat

import pytest

from heterps_compile.errors import HeterpsError, InputError
from heterps_compile.runtime.launch.run_folder import write_private
from heterps_compile.runtime.launch.run_options import RunOptions, options_from_json
from heterps_compile.runtime.launch.server_options import ServerOptions

TRAIN = {"directory": "/m.heterps", "train": "/train.py", "data": "x.parquet"}


def test_options_survive_the_journey_to_a_worker():
    options = RunOptions(
        **TRAIN, replicas=(2, 1), speeds=((1.0, 2.0), (1.0,)), servers=ServerOptions(count=2, memory_bytes=1 << 20)
    )
    assert options_from_json(options.to_json()) == options


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "text"),
        ('{"directory": "m", "data": "x", "surprise": 1}', "surprise"),
        ('{"directory": "m", "data": "x", "steps": "3"}', "steps"),
        ('{"directory": "m", "data": "x", "replicas": [1, true]}', "replicas.1"),
        ('{"data": "x"}', "directory"),
    ],
)
def test_what_is_no_options_is_refused_with_its_place(text, said):
    with pytest.raises(InputError, match=said):
        options_from_json(text)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": 0}, r"--steps.*\b0\b.*\b1\b"),
        ({"steps": "many"}, r"--steps.*'many'.*\b1\b"),
        ({"seed": 2**63}, "--seed.*9223372036854775808.*9223372036854775807"),
        ({"clip_norm": True}, "--clip-norm.*True"),
        ({"replicas": (2, 0)}, r"--replicas.*\b0\b"),
        ({"speeds": ((1.0, -1.0),)}, "--speeds.*-1.0"),
        ({"hang_after_s": float("nan")}, "--hang-after.*nan"),
        ({"wire": "float8"}, "'float8'"),
        ({"clip_norm": 0.0}, "--clip-norm.*0.0"),
        ({"ema": 1.0}, "--ema is 1.0.*1"),
        ({"servers": ServerOptions(count=1, show_decay=1.5)}, "--show-decay is 1.5.*1"),
        ({"hang_after_s": 1e308}, "--hang-after.*2147483647"),
        ({"shuffle": "some"}, "--shuffle.*'some'"),
        ({"precision": "half"}, "--precision.*'half'.*bf16"),
        ({"averaged": True}, "--averaged.*--weights"),
        ({"sync": "topk(density=2)"}, r"\b2\b.*\b0\b.*\b1\b"),
        ({"sync": "auto(topk(density=0.02), local(steps=8))"}, "--sync.*planner"),
        ({"train": None, "sync": "adasum"}, "--sync.*training"),
        ({"resume": True}, "--resume.*--checkpoint.*--checkpoint DIR"),
        (
            {"servers": ServerOptions(count=1, admit_after=2)},
            "--admit-after.*--grow-tables",
        ),
        ({"weights": "ck/step-1", "resume": True, "checkpoint": "ck"}, "--weights and --resume"),
        ({"output": "out"}, "--output"),
        ({"train": None, "checkpoint": "ck"}, "--checkpoint.*training"),
        ({"train": None, "servers": ServerOptions(count=1)}, "--parameter-servers"),
        ({"train": None, "clip_norm": 1.0}, "--clip-norm.*training"),
    ],
)
def test_options_that_make_no_sense_are_refused(changed, said):
    with pytest.raises(HeterpsError, match=said.replace("(", r"\(")):
        RunOptions(**{**TRAIN, **changed})


def test_ranks_agree_on_what_is_run_not_on_where_things_lie():
    here, there = RunOptions(**TRAIN, log="a"), RunOptions(directory="/n", train="/t.py", data="y", log="b")
    assert here.shared() == there.shared()
    assert here.shared() != RunOptions(**TRAIN, seed=1).shared()
    assert here.shared() != RunOptions(**TRAIN, clip_norm=1.0).shared()
    one, two, none = (RunOptions(**TRAIN, checkpoint=folder).shared() for folder in ("a", "b", None))
    assert one == two != none  # where they lie is each host's affair, that they are kept is not


def test_the_file_for_workers_is_readable_by_its_owner_alone(tmp_path):
    write_private(tmp_path / "run.json", "{}")
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "run.json", "{}")
