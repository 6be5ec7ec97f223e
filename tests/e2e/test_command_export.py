"""``heterps-compile export``: what it writes computes what the run itself says with that checkpoint."""

import pytest
import torch
from commands import heterps
from safetensors.torch import load_file
from written_ctrdnn import BATCH, DATA, MICRO_BATCHES, model, samples, write_ctrdnn

import heterps_compile

pytestmark = pytest.mark.slow  # two trainings and their scoring, one after the other


@pytest.mark.parametrize("servers", [0, 2])
def test_the_exported_model_scores_as_the_run_does(tmp_path, servers):
    write_ctrdnn(tmp_path)
    size = ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "-q")
    words = ("--train", "train.py", "--data", DATA, "--steps", "3", "--replicas", "2,1", "--checkpoint", "ck")
    served = ("--parameter-servers", str(servers)) if servers else ()
    run = heterps("run", "model2.heterps", *words, *size, *served, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    run = heterps("export", "ck", "-o", "trained.safetensors", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    built, _ = model()
    built.load_state_dict(load_file(tmp_path / "trained.safetensors"), strict=True)
    read = samples(0, BATCH)
    ours = built.eval()(read["sparse"], read["dense"]).detach()
    program = torch.export.export(model()[0].eval(), (read["sparse"], read["dense"]))
    made = heterps_compile.export_checkpoint(tmp_path / "ck", tmp_path / "trained.pt2", model=program)
    assert torch.equal(torch.export.load(made.path).module()(read["sparse"], read["dense"]), ours)
    words = ("--weights", "ck/step-000003", "--data", DATA, "--steps", "1", "--output", "scores")
    run = heterps("run", "model2.heterps", *words, *size, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    files = sorted((tmp_path / "scores").glob("*.safetensors"))
    theirs = torch.cat([tensor for file in files for tensor in load_file(file).values()])
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(model()[0].eval()(read["sparse"], read["dense"]), theirs, atol=1e-4), "it was trained"
