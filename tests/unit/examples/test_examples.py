"""The example models compute what their papers say, and train."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from heterps_compile.examples import EXAMPLES
from heterps_compile.examples.ctrdnn import ctrdnn
from heterps_compile.examples.matchnet import matchnet
from heterps_compile.examples.nce import nce
from heterps_compile.examples.two_emb import two_emb

SMALL = {
    "ctrdnn": {"batch": 4, "rows": 20, "hidden": (16, 8, 8, 4)},
    "matchnet": {"batch": 4, "users": 20, "items": 10, "width": 8, "hidden": (8, 4)},
    "2emb": {"batch": 4, "rows": 20, "width": 8, "hidden": (8,)},
    "nce": {"batch": 4, "rows": 20, "width": 8, "noise": 5},
}


def test_the_four_models_of_the_paper_are_there() -> None:
    assert sorted(EXAMPLES) == ["2emb", "ctrdnn", "matchnet", "nce"] == sorted(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_model_and_inputs(name: str) -> None:
    (one, inputs), (same, again) = EXAMPLES[name](**SMALL[name]), EXAMPLES[name](**SMALL[name])
    assert torch.equal(one(*inputs), same(*again))


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model, inputs = EXAMPLES[name](**SMALL[name])
    model(*inputs).sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


def test_building_an_example_leaves_the_random_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    EXAMPLES["ctrdnn"](**SMALL["ctrdnn"])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_ctrdnn_has_26_fields_13_numbers_and_5_linear_layers_by_default() -> None:
    model, (sparse, dense) = ctrdnn(batch=2, rows=10)
    assert (sparse.shape, dense.shape) == ((2, 26), (2, 13))
    assert len(model.tables) == 26
    assert sum(isinstance(layer, nn.Linear) for layer in model.mlp) == 5
    assert model(sparse, dense).shape == (2,)


def test_a_matchnet_score_is_the_scaled_cosine_of_its_towers() -> None:
    model, (users, items) = matchnet(batch=3, users=20, items=10, width=8, hidden=(8, 4), scale=2.0)
    cosine = nn.functional.cosine_similarity(model.user(users), model.item(items))
    torch.testing.assert_close(model(users, items), 2.0 * cosine)


def test_two_emb_reads_both_inputs_from_one_table() -> None:
    model, (query, title) = two_emb(batch=3, rows=20, width=8, hidden=(8,))
    model(query, title).sum().backward()
    assert model.words.weight.grad is not None
    touched = model.words.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert touched == sorted({*query.flatten().tolist(), *title.flatten().tolist()})


def test_nce_subtracts_the_log_of_the_expected_noise() -> None:
    model, (context, candidates) = nce(batch=3, rows=20, width=8, noise=5)
    torch.testing.assert_close(model.log_noise.exp().sum(), torch.tensor(5.0))
    nn.init.zeros_(model.word.weight)
    nn.init.zeros_(model.bias.weight)
    torch.testing.assert_close(model(context, candidates), -model.log_noise[candidates])


def test_the_table_of_examples_does_not_import_torch() -> None:
    script = "import sys, heterps_compile.examples; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
