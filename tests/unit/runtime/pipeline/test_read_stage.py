"""Stages as a rank reads them."""

import torch
from light_models import path

import heterps_compile
from heterps_compile.plan.folder import read_folder
from heterps_compile.runtime.pipeline.read_stage import read_stage


def test_a_session_of_onnx_runtime_has_as_many_threads_as_pytorch(tmp_path, monkeypatch):
    heterps_compile.compile(path("squeezenet"), method="greedy", verify=False).save(tmp_path / "out")
    plan, _ = read_folder(tmp_path / "out")
    for count in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        stage = read_stage(tmp_path / "out", plan, 0, torch.device("cpu"))
        assert stage.stage.session.open().session.get_session_options().intra_op_num_threads == count
