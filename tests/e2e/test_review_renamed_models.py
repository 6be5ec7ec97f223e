"""Real models under other names and in another order: their layers are the same layers."""

import random

import onnx
import pytest
from light_models import NAMES, path

import heterps_compile
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.passes.drafts import Draft
from heterps_compile.passes.group_layers import GroupLayers
from heterps_compile.plan.fingerprint import make_fingerprints
from heterps_compile.plan.match_layers import match_layers
from heterps_compile.plan.request import Request
from heterps_compile.review.check import check_plan
from heterps_compile.review.pose import pose_again

MOST_NODES = ("densenet121", "inception_v2")


def renamed(name: str, *, reordered: bool) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model with every value and node renamed; and the new name of the first output of every node."""
    model = onnx.load(path(name))
    graph, chance = model.graph, random.Random(0)  # noqa: S311 - no secret
    values = dict.fromkeys(v for node in graph.node for v in (*node.input, *node.output) if v)
    values |= dict.fromkeys(v.name for v in (*graph.input, *graph.output, *graph.initializer))
    new = {old: f"v{i}" for i, old in enumerate(chance.sample(list(values), len(values)))}
    for node in graph.node:
        node.name = ""
        node.input[:] = [new.get(v, v) for v in node.input]
        node.output[:] = [new[v] for v in node.output]
    for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        item.name = new.get(item.name, item.name)
    if reordered:
        left, order = list(graph.node), []
        made = {"", *(v.name for v in (*graph.input, *graph.initializer))}
        while left:
            node = chance.choice([node for node in left if made.issuperset(node.input)])
            left.remove(node)
            made.update(node.output)
            order.append(node)
        del graph.node[:]
        graph.node.extend(order)
    onnx.checker.check_model(model)
    return model, new


def fingerprints(model: str | onnx.ModelProto) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fingerprints of the layers, and the first output of the first node of each."""
    graph = import_onnx(model)
    layers = GroupLayers()(Draft(graph=graph, cluster=None, request=Request())).layers  # type: ignore[arg-type] # it needs no pool
    assert layers is not None
    first = {layer.name: graph.nodes[layer.nodes[0]].outputs[0] for layer in layers.layers}
    return make_fingerprints(layers), first


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in MOST_NODES else n for n in NAMES])
def test_every_layer_is_found_again_whatever_it_is_called_and_wherever_it_stands(name):
    model, new = renamed(name, reordered=True)
    (old_prints, old_first), (new_prints, new_first) = fingerprints(str(path(name))), fingerprints(model)
    pairs = match_layers(old_prints, new_prints)
    assert len(pairs) == len(old_prints) == len(new_prints)
    assert {layer: new_first[pairs[layer]] for layer in pairs} == {layer: new[old_first[layer]] for layer in pairs}


def test_a_plan_holds_for_its_model_under_other_names():
    plan = heterps_compile.compile(str(path("squeezenet")), method="exact", min_stages=3, verify=False).plan
    checked = check_plan(pose_again(renamed("squeezenet", reordered=False)[0], plan))
    assert (checked.passes, checked.changes.is_empty, checked.stale) == (True, True, ("model", "weights"))
    assert len(checked.changes.renamed) == len(plan.fingerprints)
