"""Runs that cannot be: one sentence, before any process has been started, on whatever is at fault."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from written_ctrdnn import BATCH, DATA, MICRO_BATCHES, TRAINING_FILE, write_ctrdnn

from heterps_compile.cli.main import run as command
from heterps_compile.errors import RunError
from heterps_compile.options import Amount, Size, Whole, Wholes
from heterps_compile.plan.command_options import SIMULATE
from heterps_compile.runtime.launch.fork_server import ForkServer
from heterps_compile.runtime.launch.option_fields import Speeds
from heterps_compile.runtime.launch.run_options import RUN

LOSS = TRAINING_FILE.partition("def optimizer")[0]
TRAIN = ("--train", "train.py")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_ctrdnn(folder)
    (folder / "no-optimizer.py").write_text(LOSS)
    (folder / "no-loss.py").write_text("def optimizer(parameters):\n    return None\n")
    (folder / "schedular.py").write_text(TRAINING_FILE + "\n\ndef schedular(optimizer):\n    return None\n")
    (folder / "syntax.py").write_text("def loss(:\n")
    (folder / "metric.py").write_text(TRAINING_FILE + "\n\ndef metric(outputs, batch):\n    return {}\n")
    pa.parquet.write_table(pa.table({"dense": [[0.5] * 13], "sparse": [[1] * 3]}), folder / "no-label.parquet")
    pa.parquet.write_table(pa.table({"dense": [[0.5]], "sparse": [[1] * 3], "label": [1.0]}), folder / "narrow.parquet")
    (folder / "text.txt").write_text("loss")
    (folder / "empty.tsv").write_text("")
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "garbage.parquet").write_bytes(b"PAR1" + bytes(100))
    (folder / "words.tsv").write_text("a\tb\tc\n")
    (folder / "full").mkdir()
    (folder / "full" / "something").touch()
    (folder / "open.toml").write_text('secret = "' + "0" * 40 + '"\n[[host]]\naddress = "127.0.0.1"\nslots = 3\n')
    (folder / "open.toml").chmod(0o644)
    (folder / "no-secret.toml").write_text('[[host]]\naddress = "127.0.0.1"\nslots = 3\n')
    return folder


def parquet(folder: Path, **columns: list[object]) -> str:
    pa.parquet.write_table(pa.table(columns), folder / "wrong.parquet")
    return "wrong.parquet"


RUNS = (*TRAIN, "--data", DATA)
FAULTS = [
    ((*RUNS, "--validate", "missing.parquet"), "missing.parquet"),
    ((*RUNS, "--validate", "empty.parquet"), "empty.parquet"),
    ((*RUNS, "--validate", DATA), "have no end, and a validation takes every sample once"),
    ((*RUNS, "--validate", "no-label.parquet"), "the validation data have no column 'label', which the training data"),
    ((*RUNS, "--validate", "narrow.parquet"), "a sample of column 'dense' is"),
    (("--train", "metric.py", *RUNS[2:]), "has a function 'metric' (line "),
    ((*TRAIN, "--data", "missing.parquet"), "missing.parquet"),
    ((*TRAIN, "--data", "empty.parquet"), "empty.parquet"),
    ((*TRAIN, "--data", "garbage.parquet"), "garbage.parquet"),
    ((*TRAIN, "--data", "empty.tsv"), "empty.tsv"),
    ((*TRAIN, "--data", "words.tsv"), "words.tsv"),
    ((*TRAIN, "--data", "wrong.parquet"), "the model takes 'dense', which is not in the data"),
    ((*TRAIN, "--data", "random:nothing<3"), "nothing"),
    (("--train", "missing.py", "--data", DATA), "'{folder}/missing.py' does not exist; expected a Python file"),
    (("--train", ".", "--data", DATA), "is a folder"),
    (("--train", "text.txt", "--data", DATA), "is no Python file; its name must end in .py"),
    (("--train", "syntax.py", "--data", DATA), "SyntaxError: invalid syntax (line 1)"),
    (("--train", "no-loss.py", "--data", DATA), "has no function 'loss'; it needs loss and optimizer"),
    (("--train", "no-optimizer.py", "--data", DATA), "has no function 'optimizer'; it needs loss and optimizer"),
    (("--train", "schedular.py", "--data", DATA), "that nothing calls, and no 'scheduler'"),
    (TRAIN, "--data is missing and no training file has data()"),
    ((*TRAIN, "--data", DATA, "--replicas", "1,64"), "64"),
    ((*TRAIN, "--data", DATA, "--batch", "7"), "batch of 7"),
    ((*TRAIN, "--data", DATA, "--schedule", "best"), "unknown schedule 'best'"),
    ((*TRAIN, "--data", DATA, "--checkpoint", "/proc/ck"), "cannot use the folder '/proc/ck' for checkpoints"),
    ((*TRAIN, "--data", DATA, "--checkpoint", "/proc"), "cannot use the folder '/proc' for checkpoints"),
    ((*TRAIN, "--data", DATA, "--checkpoint", "train.py"), "for checkpoints"),
    ((*TRAIN, "--data", DATA, "--weights", "full"), "is no checkpoint"),
    ((*TRAIN, "--data", DATA, "--log", "/proc/log.jsonl"), "/proc/log.jsonl"),
    ((*TRAIN, "--data", DATA, "--trace", "/no/such/trace.json"), "/no/such/trace.json"),
    ((*TRAIN, "--data", DATA, "--telemetry", "/proc/told"), "/proc/told"),
    (("--data", DATA, "--output", "full"), "is not empty"),
    (("--data", DATA, "--output", "/proc/out"), "/proc/out"),
    (("--data", ""), "--data is missing"),
    (("--expect-sha256", "0" * 64), "is not the folder that is expected"),
    ((*TRAIN, "--data", DATA, "--device-type", "v100"), "expected it for one rank of a world alone"),
    ((*TRAIN, "--data", DATA, "--expect-sha256", "0" * 64), "is not the folder that is expected"),
]


@pytest.mark.parametrize(("words", "said"), FAULTS, ids=[" ".join(words[-2:]) for words, _ in FAULTS])
def test_what_cannot_be_is_refused_in_one_sentence_before_any_rank_starts(written, monkeypatch, capfd, words, said):
    monkeypatch.chdir(written)
    parquet(written, sparse=[["a"]], label=["b"])
    started: list[object] = []
    monkeypatch.setattr(ForkServer, "start", lambda _self, *given, **_: started.append(given))
    shape = () if "--batch" in words else ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES))
    assert command(["run", "model2.heterps", *words, *shape]) == 1
    out, err = capfd.readouterr()
    assert started == []
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("Error: ")
    assert said.format(folder=written) in line
    assert not list(Path("/proc").glob("ck*"))


ABSURD = ["1" + "0" * 30, "1" + "0" * 5000, "0", "-1", "nan", "inf", "-inf", "1e400", "1e308", "1e-400", ""]
NUMBERS = [
    (one, option)
    for one in (RUN, SIMULATE)
    for option in one.options
    if isinstance(option.type, Whole | Wholes | Amount | Size | Speeds)
]


@pytest.mark.parametrize(("one", "option"), NUMBERS, ids=[f"{one.name} {option.word}" for one, option in NUMBERS])
def test_an_absurd_number_is_taken_or_told_in_one_sentence(written, monkeypatch, capfd, one, option):
    monkeypatch.chdir(written)
    started: list[object] = []

    def launch(options, _, **__):
        started.append(options)
        raise RunError("it would start")

    monkeypatch.setattr("heterps_compile.runtime.launch.run_api.launch", launch)
    words = (
        ["run", "model2.heterps", *TRAIN, "--data", DATA] if one is RUN else ["simulate", "model2.heterps/plan.json"]
    )
    needs = {"checkpoint": ["--checkpoint", "ck"], "parameter_servers": ["--parameter-servers", "1"]}
    words += [word for needed in option.needs for word in needs.get(needed, ["--server-memory", "1 MiB"])]
    for value in ABSURD:
        unit = " MiB" if isinstance(option.type, Size) else ""
        code = command([*words, f"{option.word}={value}{unit}"])
        err = capfd.readouterr().err
        assert code in {1, 2}, value
        assert err.count("Error: ") == 1, (value, err)
        assert "Traceback" not in err, (value, err)
        assert len(err) < 1000, value
        assert bool(started) == ("it would start" in err), value
        assert not started or value not in {"-1", "nan", "inf", "-inf", "1e400"}, value
        started.clear()
