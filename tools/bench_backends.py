"""What stages cost: `python tools/bench_backends.py [--only speed|emission] [--rounds N] [MODEL ...]`.

Speed: all stages of a model in one process against the whole model on the same backend, in turns, each the best of
its rounds; the ratio is what counts, seconds drift with the machine. Targets: 1.10 in the median.
Emission: stages of BERT-base, built and written by the backend of the model's own family in a process of its own;
seconds, and the peak of resident memory beyond the loaded model over the model's size. Targets: 15 s and 1.5.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402 - after the path, as all that follows
from light_models import randomized  # noqa: E402
from torch_models import contiguous_groups  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from heterps_compile.backends.contract import Backend  # noqa: E402
from heterps_compile.backends.find import BACKENDS, find_backend, own_backend  # noqa: E402
from heterps_compile.errors import HeterpsError  # noqa: E402
from heterps_compile.examples.ctrdnn import ctrdnn  # noqa: E402
from heterps_compile.frontends.onnx import import_onnx  # noqa: E402
from heterps_compile.frontends.torch_fx import import_torch  # noqa: E402
from heterps_compile.ir.graph import Graph  # noqa: E402
from heterps_compile.ir.partition import Partition, cut_graph  # noqa: E402
from heterps_compile.runtime.in_process import run_stages  # noqa: E402

STAGES = 3
SPEED_TARGET, MEMORY_TARGET, SECONDS_TARGET = 1.10, 1.5, 15.0
MIB = 2**20
LIGHT = ("squeezenet", "shufflenet", "inception_v1", "resnet50", "densenet121")
SIZES = {"vocab_size": 2000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
TOKENS = (4, 64)


def bert() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return BertModel(BertConfig(**SIZES, intermediate_size=1024)), (torch.randint(0, 2000, TOKENS),), {}


def gpt2() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    config = GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=2000, use_cache=False, bos_token_id=0)
    return GPT2LMHeadModel(config), (torch.randint(0, 2000, TOKENS),), {}


def llama() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    config = LlamaConfig(**SIZES, intermediate_size=512, num_key_value_heads=2, use_cache=False, pad_token_id=0)
    return LlamaForCausalLM(config), (torch.randint(0, 2000, TOKENS),), {}


def vit() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = ViTConfig(**sizes, intermediate_size=1024, image_size=112)
    return ViTForImageClassification(config), (torch.randn(2, 3, 112, 112),), {}


def resnet50() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return ResNetForImageClassification(ResNetConfig()), (torch.randn(1, 3, 224, 224),), {}


def ctr() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return (*ctrdnn(rows=1000), {})


TORCH: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "bert": bert, "gpt2": gpt2, "llama": llama, "vit": vit, "resnet50": resnet50, "ctrdnn": ctr,
}  # fmt: skip


def graphs(wanted: Sequence[str]) -> Iterator[tuple[str, Graph]]:
    """Read every model that is wanted, by its name and family."""
    for name in LIGHT:
        if not wanted or name in wanted:
            yield f"{name} (onnx)", import_onnx(randomized(name, 0))
    for name, make in TORCH.items():
        if not wanted or name in wanted:
            torch.manual_seed(0)
            model, args, kwargs = make()
            yield f"{name} (torch)", import_torch(model.eval(), args, kwargs)


def runners(backend: Backend, graph: Graph) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return what runs the whole model, and what runs its stages, on one backend."""
    inputs = backend.example_inputs(graph, 0)
    if backend.name == own_backend(graph.family).name:
        reference = backend.reference(graph)

        def whole() -> Any:
            return reference(inputs)
    else:
        whole = staged(backend, graph, 1, inputs)
    return whole, staged(backend, graph, STAGES, inputs)


def staged(backend: Backend, graph: Graph, count: int, inputs: dict[str, Any]) -> Callable[[], Any]:
    partition = cut(graph, count)
    stages = backend.build(graph, partition)

    def run() -> Any:
        found = run_stages(partition.stages, stages, inputs, graph.outputs)
        for value in found.values():
            getattr(value, "block_until_ready", lambda: None)()  # JAX gives values before they are computed
        return found

    return run


def cut(graph: Graph, count: int) -> Partition:
    return cut_graph(graph, contiguous_groups(graph, count))


def best_of(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Time runs in turn; give the best seconds of each: of the processor where there is one, else on the wall."""
    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    best_s = [float("inf")] * len(runs)
    with torch.no_grad():
        for number in range(rounds + 2):  # two to warm up
            for place, run in enumerate(runs):
                began = clock()
                run()
                if number >= 2:
                    best_s[place] = min(best_s[place], clock() - began)
    return best_s


def bench_speed(wanted: Sequence[str], names: Sequence[str], rounds: int) -> None:
    print(
        f"{STAGES} stages in one process against the whole model, {rounds} rounds, {len(os.sched_getaffinity(0))} cores"
    )
    print(f"{'model':24}{'backend':>14}{'whole ms':>11}{'stages ms':>11}{'ratio':>8}")
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for model, graph in graphs(wanted):
        for name in names:
            backend = find_backend(name)
            if graph.family not in backend.families:
                continue
            try:
                whole_s, staged_s = best_of(runners(backend, graph), rounds)
            except HeterpsError as error:
                print(f"{model:24}{name:>14}  {error}")
                continue
            ratios[name].append(staged_s / whole_s)
            print(f"{model:24}{name:>14}{whole_s * 1e3:11.2f}{staged_s * 1e3:11.2f}{ratios[name][-1]:8.2f}", flush=True)
    for name, found in ratios.items():
        if found:
            print(f"{name}: median ratio {statistics.median(found):.3f} (target {SPEED_TARGET:.2f})")


def resident_bytes(field: str) -> int:
    """Return what the kernel counts of this process: ``VmRSS`` now, ``VmHWM`` at the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel tells no {field}")


def emit(family: str, folder: Path) -> dict[str, float]:
    """Build and write the stages of BERT-base in this process; give seconds and bytes."""
    if family == "onnx":
        graph = import_onnx(folder / "bert.onnx")
        tensors = [value.const_value for value in graph.source.model.graph.initializers.values()]
        for tensor in tensors:
            tensor.numpy().max()  # what is mapped from the file counts as loaded
    else:
        graph = import_torch(*bert_base())
    size_bytes = sum({p.storage: p.size_bytes for p in graph.parameters.values()}.values())
    backend, partition = own_backend(family), cut(graph, STAGES)
    (folder / "out").mkdir()
    ctypes.CDLL(None).malloc_trim(0)  # what reading has freed is not room for what emission takes
    before_bytes = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    began = time.perf_counter()
    backend.write(graph, backend.build(graph, partition), partition.stages, folder / "out")
    took_s = time.perf_counter() - began
    return {"seconds": took_s, "size": size_bytes, "beyond": resident_bytes("VmHWM") - before_bytes}


def bert_base() -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return BertModel(BertConfig()).eval(), (torch.randint(0, 30000, (1, 128)),)


def bench_emission() -> None:
    print(f"\nBERT-base in {STAGES} stages, built and written by the backend of its own family")
    print(f"{'family':10}{'backend':>14}{'model MiB':>11}{'seconds':>9}{'beyond MiB':>12}{'x model':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        torch.onnx.export(*bert_base(), dynamo=True, verbose=False).save(f"{temporary}/bert.onnx", external_data=True)
        for family in ("onnx", "torch"):
            done = subprocess.run(
                [sys.executable, __file__, "--emit", family, temporary], capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            for file in Path(temporary, "out").iterdir():
                file.unlink()
            Path(temporary, "out").rmdir()
            size, beyond = found["size"] / MIB, found["beyond"] / MIB
            name = own_backend(family).name
            print(f"{family:10}{name:>14}{size:11.0f}{found['seconds']:9.1f}{beyond:12.0f}{beyond / size:9.2f}")
    print(f"targets: {SECONDS_TARGET:g} s, {MEMORY_TARGET:g} x the model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", help=f"of {', '.join({*LIGHT, *TORCH})}; all where none is named")
    parser.add_argument("--only", choices=("speed", "emission"))
    parser.add_argument("--backend", action="append", help="may be repeated; all where none is named")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", type=int, help="use so many; 1 on a machine that is busy otherwise")
    parser.add_argument("--emit", nargs=2, metavar=("FAMILY", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.emit:
        family, folder = arguments.emit
        print(json.dumps(emit(family, Path(folder))))
        return
    if arguments.cores:
        os.sched_setaffinity(0, range(arguments.cores))
        torch.set_num_threads(arguments.cores)
    if arguments.only != "emission":
        bench_speed(arguments.model, arguments.backend or list(BACKENDS), arguments.rounds)
    if arguments.only != "speed":
        bench_emission()


if __name__ == "__main__":
    main()
