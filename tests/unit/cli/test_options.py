import click
import pytest

from heterps_compile.cli.options import amount, pins, positive_amount, sizes

PARAM = click.Option(["--it"])
CONTEXT = click.Context(click.Command("command"))


@pytest.mark.parametrize(
    ("read", "given", "value"),
    [
        (amount, None, None),
        (amount, "0", 0.0),
        (positive_amount, "2.5", 2.5),
        (positive_amount, "1e3", 1000.0),
        (sizes, (), {}),
        (sizes, ("seq=128", "a=b=3"), {"seq": 128, "a=b": 3}),
        (sizes, ("a=1", "b=2", "a=1"), {"a": 1, "b": 2}),
        (pins, ("embedding=cpu-core", "a=b*=t4"), {"embedding": "cpu-core", "a=b*": "t4"}),
    ],
)
def test_a_value_is_read(read, given, value):
    assert read(CONTEXT, PARAM, given) == value


@pytest.mark.parametrize(
    ("read", "given", "said"),
    [
        (amount, "2 s", "'2 s' is no number; give a plain one"),
        (amount, "-1", "must be zero or more and finite"),
        (amount, "nan", "must be zero or more and finite"),
        (amount, "inf", "must be zero or more and finite"),
        (positive_amount, "0", "must be above zero and finite"),
        (sizes, ("seq",), "is not NAME=N"),
        (sizes, ("=3",), "is not NAME=N"),
        (sizes, ("seq=0",), "is not NAME=N"),
        (sizes, ("seq=-1",), "is not NAME=N"),
        (sizes, ("seq=1.5",), "is not NAME=N"),
        (sizes, ("seq=²",), "is not NAME=N"),
        (sizes, ("a=1", "a=2"), "'a' is given twice, as 1 and as 2"),
        (pins, ("embedding",), "is not PATTERN=DEVICE"),
        (pins, ("=cpu",), "is not PATTERN=DEVICE"),
        (pins, ("embedding=",), "is not PATTERN=DEVICE"),
        (pins, ("a=x", "a=y"), "'a' is given twice, as 'x' and as 'y'"),
    ],
)
def test_a_wrong_value_is_wrong_usage(read, given, said):
    with pytest.raises(click.BadParameter) as caught:
        read(CONTEXT, PARAM, given)
    assert said in str(caught.value)
