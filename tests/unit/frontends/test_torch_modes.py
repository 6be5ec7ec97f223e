"""Which layers do something else in training."""

import pytest
from torch import nn

from heterps_compile.frontends.torch_modes import has_modes


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.BatchNorm1d(2), True),
        (nn.BatchNorm1d(2, track_running_stats=False), False),  # the batch's own statistics, always
        (nn.InstanceNorm1d(2), False),
        (nn.InstanceNorm1d(2, track_running_stats=True), True),
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (nn.LSTM(2, 2), False),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (nn.Linear(2, 2), False),
    ],
    ids=str,
)
def test_a_layer_has_modes_where_training_changes_what_it_computes(layer: nn.Module, expected: bool) -> None:
    assert has_modes(nn.Sequential(nn.ReLU(), layer)) == expected
