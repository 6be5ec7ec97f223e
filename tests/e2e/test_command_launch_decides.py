"""Runs of a folder of `machines -o` lose a host and decide to wait: over ssh none comes, on a cluster of Ray one does.

Over ssh two addresses of this machine are two hosts, each with a server of OpenSSH of its own, which is killed with all
that it started. On Ray two nodes of this machine have a resource each.
"""

import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from secrets import token_hex

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from processes import end_of, kill_with_descendants
from ssh_server import NoServerError, make_ssh_host
from test_command_launch_elastic import ENVIRONMENT, PATIENCE_S, ROOT, free_port, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # ranks that start cold, twice

COLUMNS = (
    "provider,region,instance,gpu,gpus,cores,memory_gib,gpu_memory_gib,network_gbit_per_s,inner_gbyte_per_s,"
    "price_usd_per_hour,spot_usd_per_hour,price_date,source"
)
OFFERS = f"""{COLUMNS}
aws,us-east-1,g4dn.xlarge,t4,1,4,16,16,25,,0.526,,2026-11-01,a test
"""
TRAIN = """
import os, time, torch

def loss(outputs, batch):
    while os.path.exists(HOLD):
        time.sleep(0.01)
    return (outputs[0] if isinstance(outputs, (list, tuple)) else outputs).square().mean()

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=1e-4)
"""


def heterps(folder: Path, words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "heterps_compile", *words.split()],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def write_model(path: Path) -> None:
    """Write three layers, which two machines train in about half the time of one where batches are large."""
    rng, sizes = np.random.default_rng(0), (64, 256, 256, 8)
    weights = [(rng.standard_normal(pair) / pair[0] ** 0.5).astype("float32") for pair in pairwise(sizes)]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"dense{i}") for i in range(3)],
        "layers",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("x3", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_a_run_waits_for_a_host_as_it_decides_and_goes_on_without_it(tmp_path):
    write_model(tmp_path / "m.onnx")
    (tmp_path / "offers.csv").write_text(OFFERS)
    (tmp_path / "train.py").write_text(f"HOLD = {str(tmp_path / 'hold')!r}\n{TRAIN}")
    servers = []
    try:
        for name, address in (("one", "127.0.0.1"), ("two", "127.0.0.2")):
            (tmp_path / f"ssh-{name}").mkdir()
            servers.append(make_ssh_host(tmp_path / f"ssh-{name}", str(ROOT), address))
    except NoServerError as error:
        pytest.skip(f"no server of OpenSSH here: {error}")
    # within a budget alone the fastest set is chosen: two machines, which are worth a wait
    heterps(
        tmp_path,
        "machines m.onnx --samples 1e12 --batch 4096 --budget 900 --max-machines 2 --catalogue offers.csv -o two",
    )
    (tmp_path / "ssh_config").write_text("".join(server.client for server in servers))
    hosts = tmp_path / "hosts.toml"
    table = '[[host]]\naddress = "127.0.0.{}"\nslots = 1\n'
    hosts.write_text(
        f'secret = "{token_hex(32)}"\nport = {free_port()}\nwait_s = 30\n' + table.format(1) + table.format(2)
    )
    hosts.chmod(0o600)
    running = [server.start() for server in servers]
    words = (
        "launch two --on ssh --hosts hosts.toml --ssh-config ssh_config --max-restarts 3 --elastic 1:2 "
        "--decide m.onnx --catalogue offers.csv --spent 1.5 --train train.py --data random:x0=float32[64] "
        "--steps 30 --checkpoint ck --every 5 -q --log log.jsonl"
    )
    told = tmp_path / "told"
    with told.open("w") as to:
        run = subprocess.Popen(
            [sys.executable, "-m", "heterps_compile", *words.split(), "--python", sys.executable],
            cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=to, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: any(int(found.name[5:]) >= 10 for found in tmp_path.glob("ck/step-*[0-9]")), run, told)
        (tmp_path / "hold").touch()
        kill_with_descendants(running[1].pid)
        running[1].wait()
        wait_for(lambda: "restart 1 of 3" in told.read_text(), run, told)
        (tmp_path / "hold").unlink()
        code, _, _ = end_of(run, PATIENCE_S)
    finally:
        for process in (run, *running):
            with suppress(ProcessLookupError):
                kill_with_descendants(process.pid)
            process.wait()
    said = told.read_text()
    assert code == 0, said
    assert "deciding whether to stay on the hosts that are left, to wait or to move\n" in said
    assert "lost: 1 of 2 g4dn.xlarge machines\n" in said
    assert "for 900.00 USD in all; 1.5" in said
    decided = next(line for line in said.splitlines() if " in all, " in line and " from now" in line)
    assert decided.startswith("wait for 2 x aws g4dn.xlarge in us-east-1"), said
    assert "waiting for up to 30 s for others in the place of those that were lost\n" in said
    assert "no others came within 30 s\n" in said
    assert "replicas 1 on 1 host (127.0.0.1=1) now" in said
    assert (tmp_path / "ck" / "step-000030").is_dir()
