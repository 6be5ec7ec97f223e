"""Make a long ONNX chain with branches: `python tools/chain_model.py NODES FILE`.

Every block of seven nodes is a gated residual step: one branch through a matrix, two around it::

    x ─┬─ MatMul ── Add ── Relu ── Mul ── Add ── Tanh ── y
       ├─────── Sigmoid ────────────┘      │
       └───────────────────────────────────┘
"""

import argparse

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCK = 7
WIDTH = 16


def chain_model(nodes: int, seed: int = 0) -> onnx.ModelProto:
    """Make a model of so many nodes, rounded up to whole blocks; its batch is dynamic."""
    random = np.random.default_rng(seed)
    made, weights, x = [], [], "x0"
    for i in range(-(-nodes // BLOCK)):
        weight, bias = random.normal(0, 0.1, (WIDTH, WIDTH)), random.normal(0, 0.1, WIDTH)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"weight{i}"))
        weights.append(numpy_helper.from_array(bias.astype(np.float32), f"bias{i}"))
        y = f"x{i + 1}"
        steps = (
            ("MatMul", [x, f"weight{i}"], f"product{i}"),
            ("Add", [f"product{i}", f"bias{i}"], f"sum{i}"),
            ("Relu", [f"sum{i}"], f"hidden{i}"),
            ("Sigmoid", [x], f"gate{i}"),
            ("Mul", [f"hidden{i}", f"gate{i}"], f"gated{i}"),
            ("Add", [f"gated{i}", x], f"passed{i}"),
            ("Tanh", [f"passed{i}"], y),
        )
        made += [helper.make_node(op, reads, [out], name=f"{op.lower()}_{out}") for op, reads, out in steps]
        x = y
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in ("x0", x)]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int)
    parser.add_argument("file")
    arguments = parser.parse_args()
    onnx.save(chain_model(arguments.nodes), arguments.file)


if __name__ == "__main__":
    main()
