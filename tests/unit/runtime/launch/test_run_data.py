"""Which samples a rank reads, and when."""

import pytest
import torch
from plans import PLAN

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.data.model_inputs import InputSpec
from heterps_compile.runtime.data.sample_source import TensorSource
from heterps_compile.runtime.launch.faults import exception_cause
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.launch.run_data import Feed, MicroBatches, telling_ids
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout

LAYOUT = make_layout(PLAN, training=False, replicas=[2, 1], step=StepShape(micro_batches=4, batch=8))


def numbered(*names: str) -> TensorSource:
    return TensorSource({name: torch.arange(100) + 1000 * place for place, name in enumerate(names)})


def reader(source, rank=0, steps=range(3), wanted=("ids",), **given) -> MicroBatches:
    return MicroBatches(source, LAYOUT, rank, steps, feed=Feed(wanted=wanted, **given), progress=ProgressRecorder())


def test_a_rank_reads_its_own_micro_batches_of_every_step():
    batches = reader(numbered("ids"), rank=1)
    read = [[batches.of_step(step)(m, ["ids"])["ids"].tolist() for m in (1, 3)] for step in range(3)]
    batches.close()
    assert read == [[[2, 3], [6, 7]], [[10, 11], [14, 15]], [[18, 19], [22, 23]]]


def test_a_run_that_goes_on_reads_on_where_it_was():
    batches = reader(numbered("ids"), steps=range(2, 3))
    assert batches.of_step(2)(0, ["ids"])["ids"].tolist() == [16, 17]
    batches.close()


def test_only_the_columns_that_are_wanted_are_read():
    batches = reader(numbered("ids", "label", "other"))
    assert list(batches.of_step(0)(0, ["ids"])) == ["ids"]
    batches.close()
    batches = reader(numbered("ids", "label"), wanted=("ids", "*"))
    assert list(batches.of_step(0)(0, ["*"])) == ["ids", "label"]
    batches.close()


def test_raw_columns_are_prepared():
    batches = reader(numbered("raw"), prepare=lambda batch: {"ids": batch["raw"] * 2})
    assert batches.of_step(0)(2, ["ids"])["ids"].tolist() == [8, 10]
    with pytest.raises(InputError, match="'dense'"):
        batches.of_step(1)(0, ["dense"])
    batches.close()


@pytest.mark.parametrize(
    ("prepared", "said"),
    [
        (3, "columns"),
        ({"ids": [1, 2]}, "'ids'.*tensors"),
        ({"ids": torch.zeros(1)}, r"'ids'.*\[1\].*\b2\b"),
    ],
)
def test_what_prepare_may_not_give(prepared, said):
    batches = reader(numbered("raw"), prepare=lambda batch: prepared)
    with pytest.raises(InputError, match=said):
        batches.of_step(0)(0, ["ids"])
    batches.close()


def test_what_prepare_adds_beside_the_inputs_is_free_in_its_shape():
    batches = reader(numbered("raw"), prepare=lambda batch: {"ids": batch["raw"], "weights": torch.ones(7)})
    assert list(batches.of_step(0)(0, ["ids", "*"])) == ["ids", "weights"]
    batches.close()


def test_an_id_that_no_table_has_is_told_with_the_ids_there_were():
    batches = reader(numbered("ids", "label"), wanted=("ids", "*"))
    batches.of_step(0)(2, ["*"])
    outside = IndexError("index out of range in self")
    with pytest.raises(RunError), telling_ids(batches):
        raise RunError("stage 0, replica 0 (rank 0), forward of micro-batch 2 in step 0: it failed") from outside
    batches.close()
    assert exception_cause(outside).endswith("where the micro-batch has 'ids' from 4 to 5, 'label' from 1,004 to 1,005")


def test_prepare_is_told_which_columns_there_are():
    batches = reader(numbered("raw", "label"), prepare=lambda batch: {"ids": batch["row"]})
    with pytest.raises(InputError, match=r"'row'.*'raw'.*'label'"):
        batches.of_step(0)(0, ["ids"])
    batches.close()


def test_a_column_that_is_missing_is_told():
    with pytest.raises(InputError, match="'ids'"):
        reader(numbered("id"))


def test_numbers_become_what_the_model_takes():
    batches = reader(numbered("ids"), inputs={"ids": InputSpec("int32", ())})
    assert batches.of_step(0)(0, ["ids"])["ids"].dtype is torch.int32
    batches.close()
    batches = reader(numbered("ids"), inputs={"ids": InputSpec("int64", (3,))})
    with pytest.raises(InputError, match=r"'ids'.*int64"):
        batches.of_step(0)(0, ["ids"])
    batches.close()
