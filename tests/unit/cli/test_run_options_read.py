"""What a person may write for the options of ``run``."""

import pytest
from click.testing import CliRunner

from heterps_compile.cli.run import run


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
