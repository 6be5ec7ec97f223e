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
        ("{", "the text"),
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
        ({"steps": 0}, "--steps is 0; it must be a whole number, 1 or more"),
        ({"steps": 1.5}, "--steps is 1.5; it must be a whole number, 1 or more"),
        ({"steps": "many"}, "--steps is 'many'; it must be a whole number, 1 or more"),
        ({"seed": 2**63}, "--seed is 9223372036854775808; it must be 9223372036854775807 or less"),
        ({"clip_norm": "much"}, "--clip-norm is 'much'; it must be above zero and finite"),
        ({"clip_norm": True}, "--clip-norm is True; it must be above zero and finite"),
        ({"replicas": (2, 0)}, "--replicas is 0"),
        ({"speeds": ((1.0, -1.0),)}, "--speeds is -1.0"),
        ({"hang_after_s": float("nan")}, "--hang-after is nan"),
        ({"wire": "float8"}, "unknown wire format 'float8'"),
        ({"clip_norm": 0.0}, "--clip-norm is 0.0; it must be above zero and finite"),
        ({"clip_norm": -1.0}, "--clip-norm is -1.0"),
        ({"clip_norm": float("nan")}, "--clip-norm is nan"),
        (
            {"clip_norm": 1.0, "servers": ServerOptions(count=1, staleness=None)},
            "--clip-norm and --staleness do not go",
        ),
        ({"sync": "gossip"}, "unknown synchronisation rule 'gossip'"),
        ({"sync": "topk(density=2)"}, "the density of topk is 2; it must be above 0 and at most 1"),
        ({"sync": " auto "}, "--sync auto leaves the rules to the planner"),
        ({"sync": "auto(topk(density=0.02), local(steps=8))"}, "--sync auto leaves the rules to the planner"),
        ({"train": None, "sync": "adasum"}, "--sync is for training"),
        ({"resume": True}, "--resume means nothing without --checkpoint; give --checkpoint DIR too"),
        ({"every": 5}, "--every means nothing without --checkpoint"),
        (
            {"servers": ServerOptions(count=1, admit_after=2)},
            "--admit-after means nothing without --grow-tables",
        ),
        ({"weights": "ck/step-1", "resume": True, "checkpoint": "ck"}, "--weights and --resume do not go together"),
        ({"output": "out"}, "--output is for inference, and means nothing for training"),
        ({"train": None, "checkpoint": "ck"}, "--checkpoint is for training"),
        ({"train": None, "servers": ServerOptions(count=1)}, "--parameter-servers is for training"),
        ({"train": None, "clip_norm": 1.0}, "--clip-norm is for training"),
        ({"train": None, "data": ""}, "inference needs data to read"),
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
