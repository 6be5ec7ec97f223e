"""What a profile of a small model has in it; times are whatever the machine makes them."""

import json
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import heterps_compile
from heterps_compile.api import read_model
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.profile_file import from_json, to_json
from heterps_compile.errors import BackendError, InputError, RunError, UnknownNameError
from heterps_compile.profiling.cache import Cache
from heterps_compile.profiling.clock import make_clock
from heterps_compile.profiling.profile_model import Settings, profile_model

BATCH = torch.export.Dim("batch", min=1, max=1024)
QUICK = Settings(batches=(2, 6), repeats=2, least_s=0.0, with_replicas=False, with_link=False, with_crowding=False)


class Net(nn.Module):
    """A table and three layers, two of them equal."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.table(ids))


MODEL = Net()
IDS = torch.zeros(4, 5, dtype=torch.int64)
FREE = ({0: BATCH},)


def read(batch):
    return read_model(MODEL, (IDS,), None, batch=batch, shapes={}, dynamic_shapes=FREE)


def test_every_layer_is_there_once_with_every_batch():
    (device,) = profile_model(read, QUICK).devices
    assert [layer.kind for layer in device.layers] == ["embedding", "gemm", "gemm"]  # two of the three are equal
    assert [[point.batch for point in layer.points] for layer in device.layers] == [[2, 6]] * 3
    assert all(
        point.forward.median_s > 0 and point.backward is None for layer in device.layers for point in layer.points
    )
    assert [whole.batch for whole in device.wholes] == [2, 6]
    assert (device.name, device.kind, device.clock, device.backend) == ("cpu", "cpu", "cpu", "torch")


def forward_s(layer):
    return layer.phases(4, training=False).forward_s


def test_layers_add_up_to_the_whole():
    (device,) = profile_model(read, replace(QUICK, batches=(4,))).devices
    by_hand = sum(count * forward_s(layer) for count, layer in zip((1, 2, 1), device.layers, strict=True))
    # the two equal layers have the median of both, which for two is their mean
    assert by_hand == pytest.approx(device.wholes[0].forward_s)


def test_training_has_backwards_and_what_a_step_has_besides_layers():
    (device,) = profile_model(read, replace(QUICK, mode="training")).devices
    rates = device.step_rates
    assert rates is not None
    assert (
        min(rates.moved_per_s, rates.selected_per_s, rates.chosen_per_s, rates.placed_per_s, rates.combined_per_s) > 0
    )
    assert {each.name for each in rates.optimizers} == {"adam", "sgd", "momentum", "adafactor"}
    assert all(each.bytes_per_s > 0 and each.tensor_s >= 0 for each in rates.optimizers)
    points = [point for layer in device.layers for point in layer.points]
    assert all(p.backward.median_s > 0 and p.accumulate.median_s > 0 for p in points)


@pytest.mark.slow  # several models are profiled
def test_a_profile_of_a_precision_is_measured_for_plans_of_it_alone(tmp_path):
    profile = profile_model(read, replace(QUICK, mode="training", precision="bf16", batches=(4,)))
    assert from_json(to_json(profile), "the file").devices[0].precision == "bf16"
    (tmp_path / "profile.json").write_text(to_json(profile))
    for precision, found in (
        ("bf16", "core': 4 measured"),
        ("fp32", "of bf16, and the plan is for fp32: layers that compute"),
    ):
        compiled = heterps_compile.compile(
            MODEL, (IDS,), dynamic_shapes=FREE, batch=4, cluster="local", method="greedy", mode="training",
            profile=tmp_path / "profile.json", precision=precision, verify=False,
        )  # fmt: skip
        assert any(found in note for note in compiled.plan.notes), compiled.plan.notes


def test_the_file_reads_back_and_compile_takes_it(tmp_path):
    profile = profile_model(read, QUICK)
    assert from_json(to_json(profile), "the file") == profile
    path = tmp_path / "profile.json"
    path.write_text(to_json(profile))
    compiled = heterps_compile.compile(
        MODEL, (IDS,), dynamic_shapes=FREE, batch=4, cluster="local", method="greedy", profile=path, verify=False
    )
    assert compiled.plan.notes[0].startswith("times of layers on 'core': 4 measured")
    assert len(compiled.plan.hashes["profile"]) == 64
    assert sum(stage.compute_s for stage in compiled.plan.stages) == pytest.approx(
        sum(count * forward_s(layer) for count, layer in zip((1, 2, 1), profile.devices[0].layers, strict=True))
    )


def test_times_of_one_model_are_found_in_another(tmp_path):
    class Other(nn.Module):
        """Two layers of the other model and one that it lacks, under other names."""

        def __init__(self) -> None:
            super().__init__()
            self.own, self.same, self.end = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.end(torch.relu(self.same(torch.tanh(self.own(x)))))

    path = tmp_path / "profile.json"
    path.write_text(to_json(profile_model(read, replace(QUICK, batches=(20,)))))
    compiled = heterps_compile.compile(
        Other(), (torch.zeros(20, 5, 8),), cluster="local", method="greedy", profile=path, backend="torch", verify=False
    )
    assert compiled.plan.notes[0].startswith("times of layers on 'core': 2 measured, 1 calibrated")


def test_an_interrupted_profile_keeps_the_batches_that_are_done(tmp_path):
    cache = Cache(tmp_path / "cache.json")

    def interrupt(now):
        if "batch 8" in now.step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_model(read, replace(QUICK, batches=(2, 8)), cache=cache, on_progress=interrupt)
    before = json.loads((tmp_path / "cache.json").read_text())["times"]
    profile_model(read, replace(QUICK, batches=(2, 8)), cache=Cache(tmp_path / "cache.json"))
    after = json.loads((tmp_path / "cache.json").read_text())["times"]
    assert {digest: after[digest] for digest in before} == before != {}
    assert len(after) == 2 * len(before)


def test_what_is_in_the_cache_is_not_measured_again(tmp_path):
    cache = Cache(tmp_path / "cache.json")
    first = profile_model(read, QUICK, cache=cache)
    again = profile_model(read, QUICK, cache=Cache(tmp_path / "cache.json"))
    assert again.devices[0].layers == first.devices[0].layers
    assert again.devices[0].wholes == ()  # nothing was run
    with_more = profile_model(read, replace(QUICK, batches=(2, 12)), cache=Cache(tmp_path / "cache.json"))
    assert [whole.batch for whole in with_more.devices[0].wholes] == [12]


def test_a_model_with_a_fixed_batch_has_that_one():
    (device,) = profile_model(
        lambda batch: read_model(MODEL, (IDS,), None, batch=batch, shapes={}, dynamic_shapes=None), QUICK
    ).devices
    assert [point.batch for point in device.layers[0].points] == [4]


def test_progress_reaches_its_end():
    seen = []
    profile_model(read, QUICK, on_progress=lambda now: seen.append((now.step, now.done, now.total)))
    assert seen[0] == ("reading", 0, 1)
    assert seen[-2:] == [("cpu, batch 6", 4, 5), ("processes", 4, 5)]


def test_what_is_not_here_is_told_before_the_work():
    def never(_batch):
        raise AssertionError

    with pytest.raises(InputError, match="'cuda:99'"):
        profile_model(never, replace(QUICK, devices=("cuda:99",)))
    with pytest.raises(InputError, match="'abacus'"):
        profile_model(never, replace(QUICK, devices=("abacus",)))
    with pytest.raises(UnknownNameError, match="mode"):
        profile_model(never, replace(QUICK, mode="thinking"))
    with pytest.raises(InputError, match="--clock"):
        profile_model(never, replace(QUICK, clock="cpu", threads=2))


@pytest.mark.slow  # jax compiles every layer, forward and backward
def test_jax_is_timed_in_training_too_and_by_the_clock_of_all_its_threads():
    (device,) = profile_model(read, replace(QUICK, mode="training", backend="jax")).devices
    points = [point for layer in device.layers for point in layer.points]
    assert all(p.forward.median_s > 0 and p.backward.median_s > 0 and p.accumulate.median_s > 0 for p in points)
    assert make_clock("cpu", "cpu", 1, own_threads=find_backend("jax").capabilities.own_threads) is time.process_time
    assert make_clock("cpu", "cpu", 1) is time.thread_time


@pytest.mark.slow  # whole models, compiled and run
def test_a_plan_of_two_backends_tells_which_profile_is_of_other_kernels(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(to_json(profile_model(read, QUICK)))
    core = load_cluster("local").device_types[0]
    compiled = heterps_compile.compile(
        MODEL,
        (IDS,),
        dynamic_shapes=FREE,
        batch=4,
        cluster=Cluster("cores", "", "USD", (replace(core, name="one"), replace(core, name="two"))),
        pins={"embedding": "one", "gemm": "two"},
        backend="one=torch,two=jax",
        profile={"one": path, "two": path},
        verify=False,
    )
    told = [note for note in compiled.plan.notes if "other kernels" in note]
    assert told == [
        "the profile for 'two' is of the backend torch, and the stages are for jax: "
        "its times are those of other kernels"
    ]


def test_a_profile_of_another_version_of_torch_is_told(tmp_path):
    def notes(version):
        path = tmp_path / f"{version}.json"
        path.write_text(to_json(replace(profile, versions={**profile.versions, "torch": version})))
        compiled = heterps_compile.compile(MODEL, (IDS,), cluster="local", method="greedy", profile=path, verify=False)
        return [note for note in compiled.plan.notes if "was measured with" in note]

    profile = profile_model(read, QUICK)
    assert notes(torch.__version__.partition("+")[0] + "+cu126") == []  # the same kernels on a CPU
    assert notes("1.13.0") == [
        f"the profile for 'core' was measured with torch 1.13.0, and {torch.__version__} is installed here: its times "
        f"may no longer hold; measure anew with heterps-compile profile"
    ]


def test_other_backends_do_not_train():
    with pytest.raises(InputError, match="'onnxruntime'"):
        profile_model(read, replace(QUICK, mode="training", backend="onnxruntime"))


class Picky(nn.Module):
    """Fails on the ids that are generated: the layer reads past its table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.table(ids * ids))


def test_a_layer_that_cannot_run_is_an_error_and_no_traceback():
    ids = torch.full((4, 5), 30)
    with pytest.raises(BackendError, match="'cpu'"):
        profile_model(
            lambda batch: read_model(Picky(), (ids,), None, batch=batch, shapes={}, dynamic_shapes=None), QUICK
        )


@pytest.mark.slow  # ten processes that import PyTorch
def test_replicas_and_the_link_are_measured():
    (device,) = profile_model(read, replace(QUICK, batches=(4,), with_replicas=True, with_link=True)).devices
    assert device.link is not None
    assert device.link.bytes_per_s > 1e6
    assert device.link.latency_s < 1
    for fitted in (device.compute_parallel, device.data_parallel):
        assert fitted is None or 0 <= fitted.value <= 1
    several = device.compute_parallel is not None  # one core tells nothing of replicas
    assert all((layer.compute_parallel is not None) is several for layer in device.layers)
    assert [layer.data_parallel is not None for layer in device.layers] == [several, False, False]  # who reads the ids


@pytest.mark.slow  # processes of a run start cold
def test_a_replica_that_fails_is_told_with_its_reason(monkeypatch):
    write = TorchBackend.write

    def broken(self, graph, stages, cuts, directory):
        files = write(self, graph, stages, cuts, directory)
        (directory / files[0][0]).write_text("raise RuntimeError('no such luck')\n")
        return files

    monkeypatch.setattr(TorchBackend, "write", broken)
    with pytest.raises(RunError, match=r"luck.*--no-replicas"):
        profile_model(read, replace(QUICK, batches=(4,), with_replicas=True))
