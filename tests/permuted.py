"""One model, its nodes listed in another topological order and everything inside of it under another name."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterps_compile.ir.graph import Graph


@dataclass(frozen=True)
class Permuted:
    """A graph, and the old name of each of its nodes by the new one."""

    graph: Graph
    old_names: Mapping[str, str]


def permuted_graph(graph: Graph, seed: int) -> Permuted:
    """Draw a topological order of a graph's nodes, and new names for nodes, inner values and parameters."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    order = _draw_order([list(before) for before in graph.predecessors], chance)
    nodes = [graph.nodes[i] for i in order]
    named = {node.name: f"n{number}" for node, number in zip(nodes, _shuffled(nodes, chance), strict=True)}
    inner = [name for name in (*graph.values, *graph.parameters) if name not in (*graph.inputs, *graph.outputs)]
    new = {name: f"v{number}" for name, number in zip(inner, _shuffled(inner, chance), strict=True)}

    def rename(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new.get(name, name) for name in names)

    return Permuted(
        replace(
            graph,
            nodes=tuple(
                replace(
                    node,
                    name=named[node.name],
                    inputs=rename(node.inputs),
                    outputs=rename(node.outputs),
                    after=tuple(named[name] for name in node.after),
                )
                for node in nodes
            ),
            values={new.get(name, name): replace(v, name=new.get(name, name)) for name, v in graph.values.items()},
            parameters={
                new.get(name, name): replace(p, name=new.get(name, name), storage=new.get(p.storage, p.storage))
                for name, p in reversed(list(graph.parameters.items()))
            },
        ),
        {new_name: old_name for old_name, new_name in named.items()},
    )


def permuted_onnx(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Draw a topological order of an ONNX model's nodes, and new names for all but its inputs and outputs."""
    chance, found = random.Random(seed), onnx.ModelProto()  # noqa: S311 - no secret
    found.CopyFrom(model)
    makers = {name: i for i, node in enumerate(found.graph.node) for name in node.output}
    order = _draw_order([sorted({makers[n] for n in node.input if n in makers}) for node in found.graph.node], chance)
    nodes = [found.graph.node[i] for i in order]
    outside = {"", *(v.name for v in (*found.graph.input, *found.graph.output))}
    inner = dict.fromkeys(
        name
        for name in (
            *(n for node in nodes for n in (*node.input, *node.output)),
            *(i.name for i in found.graph.initializer),
        )
        if name not in outside
    )
    new = {name: f"v{number}" for name, number in zip(inner, _shuffled(list(inner), chance), strict=True)}
    for node, number in zip(nodes, _shuffled(nodes, chance), strict=True):
        node.name = f"n{number}"
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for item in (*found.graph.initializer, *found.graph.value_info):
        item.name = new.get(item.name, item.name)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del found.graph.node[:]
    found.graph.node.extend(copies)
    onnx.checker.check_model(found)
    return found


def tower_model(towers: int = 4, *, by_level: bool = False, rows: int = 200, width: int = 16) -> onnx.ModelProto:
    """Build a recommender: for each id an embedding and two products, their results side by side, two products more."""
    rng = np.random.default_rng(0)
    weights: list[TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
        return name

    columns = [
        (
            helper.make_node("Gather", [weight(f"table{t}", rows, width), f"ids{t}"], [f"e{t}"], f"emb{t}"),
            helper.make_node("ReduceMean", [f"e{t}"], [f"m{t}"], f"mean{t}", axes=[1], keepdims=0),
            helper.make_node("MatMul", [f"m{t}", weight(f"w{t}", width, 4 * width)], [f"a{t}"], f"wide{t}"),
            helper.make_node("Relu", [f"a{t}"], [f"r{t}"], f"relu{t}"),
            helper.make_node("MatMul", [f"r{t}", weight(f"v{t}", 4 * width, width)], [f"o{t}"], f"fc{t}"),
        )
        for t in range(towers)
    ]
    nodes = [node for row in (zip(*columns, strict=True) if by_level else columns) for node in row]
    nodes += [
        helper.make_node("Concat", [f"o{t}" for t in range(towers)], ["all"], "concat", axis=1),
        helper.make_node("MatMul", ["all", weight("w", towers * width, width)], ["h"], "top"),
        helper.make_node("Relu", ["h"], ["hr"], "act"),
        helper.make_node("MatMul", ["hr", weight("head", width, 1)], ["y"], "out"),
    ]
    ids = [helper.make_tensor_value_info(f"ids{t}", TensorProto.INT64, ["N", 3]) for t in range(towers)]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])
    graph = helper.make_graph(nodes, "towers", ids, [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _shuffled(things: list, chance: random.Random) -> list[int]:  # type: ignore[type-arg]
    return chance.sample(range(len(things)), len(things))


def _draw_order(before: list[list[int]], chance: random.Random) -> list[int]:
    after: list[list[int]] = [[] for _ in before]
    missing = [len(found) for found in before]
    for i, found in enumerate(before):
        for j in found:
            after[j].append(i)
    ready, order = [i for i, count in enumerate(missing) if not count], []
    while ready:
        i = ready.pop(chance.randrange(len(ready)))
        order.append(i)
        for j in after[i]:
            missing[j] -= 1
            if not missing[j]:
                ready.append(j)
    return order
