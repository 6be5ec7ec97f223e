"""What searching the order of layers gains, and what it costs: real models, with the compiler's order and with all.

::

    python tools/bench_orders.py             examples of the paper, ONNX's own models, recommenders of some towers
    python tools/bench_orders.py --repeat 5  medians of so many searches

``own`` is the value of the best plan in the compiler's order, ``all`` in any; ``gap`` how far below that the bound of
all orders lies. ``method s`` is what the default method takes on the compiler's order, ``orders s`` what the search
over orders takes after it, in seconds of the processor.

Left out: reading and grouping models.
"""

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time

import onnx.backend.test.data as onnx_data
from onnx import ModelProto, TensorProto, helper

from heterps_compile.api import read_model
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_orders import orders_of
from heterps_compile.errors import InfeasibleError
from heterps_compile.examples import EXAMPLES
from heterps_compile.ir.graph import Graph
from heterps_compile.passes.drafts import Draft, Posed
from heterps_compile.passes.partial_orders import enumerate_down_sets
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.placement.methods import find_method
from heterps_compile.passes.placement.orders.atoms import atoms_of
from heterps_compile.passes.placement.orders.best_order import best_order
from heterps_compile.passes.placement.orders.order_search import ORDER_EFFORT
from heterps_compile.plan.request import Request

LIGHT = Path(next(iter(onnx_data.__path__))) / "light"
ONNX = ("squeezenet", "resnet50", "shufflenet", "inception_v1", "inception_v2", "densenet121")
REQUESTS = (
    ("cost", {}),
    ("cost, 4 stages or more", {"min_stages": 4}),
    ("cost, training", {"mode": "training"}),
    ("throughput, training", {"mode": "training", "objective": "throughput"}),
    ("throughput, training, 20/h", {"mode": "training", "objective": "throughput", "budget_per_hour": 20.0}),
)
FLOOR = ("cost, 3,000/s", {"min_throughput": 3000.0})
PROOF_S = 20.0
WIDTHS = (7, 9, 11, 11, 9, 9, 9, 9)


def towers(count: int) -> ModelProto:
    """Return a recommender: for every feature a table of its own size and two products, then two products of all."""
    weights = []

    def weight(name: str, rows: int, columns: int) -> str:
        weights.append(
            helper.make_tensor(name, TensorProto.FLOAT, (rows, columns), bytes(4 * rows * columns), raw=True)
        )
        return name

    nodes = []
    for t in range(count):
        width = 8 * (1 + t % 4)
        nodes += [
            helper.make_node("Gather", [weight(f"table{t}", 1000 * (t + 1), width), f"ids{t}"], [f"e{t}"]),
            helper.make_node("ReduceMean", [f"e{t}"], [f"m{t}"], axes=[1], keepdims=0),
            helper.make_node("MatMul", [f"m{t}", weight(f"w{t}", width, 64 + 16 * t)], [f"a{t}"]),
            helper.make_node("Relu", [f"a{t}"], [f"r{t}"]),
            helper.make_node("MatMul", [f"r{t}", weight(f"v{t}", 64 + 16 * t, 16)], [f"o{t}"]),
        ]
    nodes += [
        helper.make_node("Concat", [f"o{t}" for t in range(count)], ["all"], axis=1),
        helper.make_node("MatMul", ["all", weight("top", 16 * count, 256)], ["h"]),
        helper.make_node("Relu", ["h"], ["hr"]),
        helper.make_node("MatMul", ["hr", weight("head", 256, 1)], ["y"]),
    ]
    ids = [helper.make_tensor_value_info(f"ids{t}", TensorProto.INT64, ["N", 3]) for t in range(count)]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])
    graph = helper.make_graph(nodes, f"towers{count}", ids, [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def models() -> Iterator[tuple[str, Graph, bool]]:
    """Yield names, graphs, and whether they may train."""
    for name, make in EXAMPLES.items():
        model, inputs = make()
        yield name, read_model(model, inputs, None, batch=None, shapes={}, dynamic_shapes=None), True
    for name in ONNX:
        yield (
            name,
            read_model(LIGHT / f"light_{name}.onnx", (), None, batch=None, shapes={}, dynamic_shapes=None),
            False,
        )
    for count in (3, 4, 6, 12, 26):
        graph = read_model(towers(count), (), None, batch=4096, shapes={}, dynamic_shapes=None)
        yield f"towers of {count}", graph, True


def measured(draft: Posed, repeat: int) -> str:
    """Return the columns of a row."""
    orders = orders_of(draft.layers, optimizer=draft.request.trains_with)
    method, method_s, orders_s = find_method(draft.request.method), list[float](), list[float]()
    own = found = None
    for _ in range(repeat):
        started = process_time()
        try:
            own = method(draft.problem)
        except InfeasibleError:
            own = None
        method_s.append(process_time() - started)
        started = process_time()
        found = best_order(draft.problem, orders, method.name, own, PROOF_S, is_proven=True).result
        orders_s.append(process_time() - started)
    atoms = atoms_of(draft.problem, orders)
    family = enumerate_down_sets(atoms, ORDER_EFFORT.most_down_sets)
    sets = f"> {ORDER_EFFORT.most_down_sets:,}" if family is None else f"{len(family):,}"
    times = f"{statistics.median(method_s):9.3f} {statistics.median(orders_s):9.3f}"
    if found is None:
        return f"{draft.problem.layer_count:7} {sets:>9} {'no plan':>43} {times}"
    gain = "new plan" if own is None else f"{100 * (1 - found.value / own.value):.2f} %"
    gap = 100 * (1 - max(0.0, found.bound_of_all_orders) / found.value)
    before = "none" if own is None else f"{own.value:.4g}"
    values = f"{before:>11} {found.value:11.4g} {gain:>9} {max(0.0, gap):7.2f} %"
    return f"{draft.problem.layer_count:7} {sets:>9} {values} {times}"


def main() -> None:
    """Print a row for every model and request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", default="", help="models whose names have this in them")
    asked, pool = parser.parse_args(), load_cluster("heterps-paper")
    columns = zip(("layers", "down-sets", "own", "all", "better", "gap", "method s", "orders s"), WIDTHS, strict=True)
    print(f"{'model':14} {'request':28}", *(f"{name:>{width}}" for name, width in columns))
    for name, graph, trains in models():
        if asked.only not in name:
            continue
        for words, request in REQUESTS if trains else (REQUESTS[0], REQUESTS[1], FLOOR):
            wanted = replace(Request(), **request)
            draft = run_to(Draft(graph=graph, cluster=pool, request=wanted), Posed)
            print(f"{name:14} {words:28} {measured(draft, asked.repeat)}", flush=True)


if __name__ == "__main__":
    main()
