"""What a person may write for the options of ``run``."""

import pytest
from click.testing import CliRunner

from heterps_compile.cli.main import command
from heterps_compile.cli.run import run
from heterps_compile.errors import RunError
from heterps_compile.runtime.engines import local_machine
from heterps_compile.runtime.launch import fork_server, prepare, worker
from heterps_compile.runtime.launch.run_options import INFERENCE, RUN, TRAINING


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--server-memory", "10"), "'--server-memory': '10' has no unit: expected bytes with a unit"),
        (("--replicas", "1,x"), "'--replicas': '1,x' is not a list of counts"),
        (("--speeds", "fast"), "'--speeds': 'fast' is not a list of speeds"),
    ],
)
def test_an_option_that_cannot_be_read_is_named(words, said):
    done = CliRunner().invoke(run, ["model.heterps", *words])
    assert done.exit_code == 2
    assert said in done.stderr


# ---- every option of a run, for every way to start one: it reaches what runs as it was given, or is refused by name

GIVEN = {
    "steps": ("7", 7), "epochs": ("2", 2), "replicas": ("2,1", (2, 1)), "schedule": ("gpipe", "gpipe"),
    "micro_batches": ("4", 4), "batch": ("64", 64), "speeds": ("2.3456789,1;1", ((2.3456789, 1.0), (1.0,))),
    "shuffle": ("64", 64), "precision": ("bf16", "bf16"), "ema": ("0.999", 0.999), "averaged": (None, True),
    "block": ("3", 3), "wire": ("float16", "float16"),
    "clip_norm": ("0.123456789", 0.123456789),
    "seed": ("12345678901", 12345678901), "threads": ("2", 2), "weights": ("ck/step-000001", "/there/ck/step-000001"),
    "checkpoint": ("ck", "/there/ck"), "every": ("5", 5), "keep": ("4", 4), "resume": (None, True),
    "restarts": ("3", 3), "sync": ("stage 0=topk(density=0.1), *=adasum", "stage 0=topk(density=0.1), *=adasum"),
    "hang_after": ("12.3456789", 12.3456789), "parameter_servers": ("2", 2), "server_optimizer": ("adam", "adam"),
    "server_learning_rate": ("0.0123456789", 0.0123456789), "server_memory": ("1 MiB", 2**20),
    "server_weight_decay": ("0.25", 0.25),
    "server_directory": ("rows", "/there/rows"), "staleness": ("3", 3),
    "grow_tables": ("tables.*,user", ("tables.*", "user")), "admit_after": ("3", 3), "evict_unseen": ("9", 9),
    "evict_below": ("0.123456789", 0.123456789), "show_decay": ("0.5", 0.5), "evict_every": ("50", 50),
    "expect_sha256": ("ab" * 32, "ab" * 32),
    "trace": ("t.json", "/there/t.json"), "log": ("l.jsonl", "/there/l.jsonl"), "telemetry": ("told", "/there/told"),
    "tensorboard": ("tb", "/there/tb"), "output": ("out", "/there/out"), "output_format": ("npz", "npz"),
    "quiet": (None, True), "train": ("train.py", "/there/train.py"), "data": ("x.tsv", "/there/x.tsv"),
    "validate": ("v.tsv", "/there/v.tsv"), "validate_every": ("6", 6), "keep_best": ("auc:max", "auc:max"),
    "stop_after": ("8", 8), "device_type": ("v100", "v100"),
}  # fmt: skip
PATHS = {name for name, (_, value) in GIVEN.items() if str(value).startswith("/there/")}
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
WAYS = ("here", "torchrun")
KINDS = {TRAINING: ["--train", "train.py"], INFERENCE: ["--data", "x.tsv"]}
REFUSED = {
    ("here", "device_type"): "--device-type is v100 for a run that starts its ranks on this machine",
    ("torchrun", "restarts"): "expected it for the ranks of one machine",
}
"""Beside what the declarations refuse: an option, a way, and the words."""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """What would run, as (options, words of the ranks), by the command's two ways to start; no process does."""
    monkeypatch.chdir(tmp_path)
    seen: list[tuple] = []

    def stop(*made):
        seen.append(made)
        raise RunError("it would run")

    monkeypatch.setattr(fork_server.ForkServer, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(fork_server.ForkServer, "__exit__", lambda *_: None)
    monkeypatch.setattr(local_machine, "run_here", lambda options, *_, **__: stop(options))
    monkeypatch.setattr(prepare, "prepare", lambda options: None)
    monkeypatch.setattr(worker, "work", lambda _member, spec: stop(spec.options))
    return seen


def given(name: str) -> list[str]:
    option = RUN.option(name)
    text = GIVEN[name][0]
    return [option.word] if text is None else [option.word, text]


def started(runs: list, monkeypatch, way: str, words: list[str]):
    """Return the options that the ranks would have, and what the command said; None where it refused."""
    runs.clear()
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value) if way == "torchrun" else monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(command, ["run", "m.heterps", *words])
    said = done.stderr + str(done.exception or "")
    if not runs:
        assert done.exit_code in {1, 2}, said
        return None, said
    (made,) = runs
    return made[0], said


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_an_option_of_a_run_reaches_what_runs_however_it_is_started(way, kind, runs, monkeypatch, tmp_path):
    assert set(GIVEN) == {option.name for option in RUN.options}
    for option in RUN.options:
        words = [] if option.name in ("train", "data") else [*KINDS[kind]]
        if option.name == "data" and kind == TRAINING:
            words = ["--train", "train.py"]
        if option.name == "train" and kind == INFERENCE:
            continue  # it makes it a training
        for needed in option.needs if RUN.honours(option, kind) else ():
            words += given(needed)
        options, said = started(runs, monkeypatch, way, [*words, *given(option.name)])
        why = REFUSED.get((way, option.name)) if RUN.honours(option, kind) else None
        if why is not None:
            assert (options, why in said) == (None, True), (option.name, said)
        elif not RUN.honours(option, kind):
            assert options is None, option.name
            assert f"{option.word} is for {' and '.join(option.subjects)}, and means nothing for {kind}" in said
        else:
            assert options is not None, (option.name, said)
            value = GIVEN[option.name][1]
            expected = str(tmp_path / value.removeprefix("/there/")) if option.name in PATHS else value
            found = options.by_name[option.name]
            assert (str(tmp_path / found) if option.name in PATHS else found) == expected, option.name
            assert value != option.default, option.name
