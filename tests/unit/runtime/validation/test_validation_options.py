"""What is told of the options of validations before anything has started."""

import pytest

from heterps_compile.errors import InputError, OptionError, UnknownNameError
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.validation.options import check_validation_options

BARE = "def loss(outputs, batch): ...\ndef optimizer(parameters): ...\n"
DATA = "def validation_data(): ...\n"
METRICS = "def metrics(outputs, batch): ...\n"


def check(tmp_path, text, **options):
    file = tmp_path / "train.py"
    file.write_text(text)
    check_validation_options(RunOptions(directory="/m", train=str(file), data="x.tsv", **options), str(file))


@pytest.mark.parametrize(
    ("text", "options", "error", "said"),
    [
        (BARE, {"validate_every": 5}, OptionError, "--validate-every"),
        (BARE, {"keep_best": "loss", "checkpoint": "ck"}, OptionError, "--keep-best.*validation"),
        (BARE + DATA, {"validate": "v.tsv"}, InputError, "validation_data.*--validate v.tsv"),
        (
            BARE,
            {"validate": "v.tsv", "keep_best": "auc:max", "checkpoint": "ck"},
            UnknownNameError,
            "--keep-best.*'auc'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, text, options, error, said):
    with pytest.raises(error, match=said):
        check(tmp_path, text, **options)


def test_what_does_is_not(tmp_path):
    check(tmp_path, BARE)
    check(tmp_path, BARE + DATA, validate_every=5)
    check(tmp_path, BARE + METRICS, validate="v.tsv", keep_best="auc:max", checkpoint="ck", stop_after=2)
    check(tmp_path, "from beside import *\n", keep_best="auc:max", checkpoint="ck")  # nobody knows what it has
