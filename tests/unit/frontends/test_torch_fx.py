"""Reading torch models: names, shapes, ties, batch, structure; and what is told where a model cannot be read."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch_models import REAL, Built, SkipNet, skip_net

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.laws import verify_graph


def read(built: Built, **options: Any) -> Graph:
    model, args, kwargs = built
    graph = import_torch(model, args, kwargs, **options)
    verify_graph(graph)
    return graph


@pytest.mark.parametrize("name", REAL)
def test_real_models_keep_the_laws_of_a_graph(name: str) -> None:
    graph = read(REAL[name]())
    assert graph.family == "torch"
    assert graph.source.notes == ()
    fx_nodes = list(graph.source.graph.nodes)
    assert [fx_nodes[node.origin].name for node in graph.nodes] == [node.name for node in graph.nodes]


def test_tied_weights_share_a_storage_and_each_reader_has_its_own_name() -> None:
    graph = read(REAL["gpt2"]())
    head = next(n for n in graph.nodes if n.module_path == "lm_head")
    words = next(n for n in graph.nodes if n.module_path == "transformer.wte")
    assert (head.inputs[1], words.inputs[0]) == ("lm_head.weight", "transformer.wte.weight")
    assert set(graph.tied) == {"lm_head.weight"}


def test_an_exported_program_needs_no_examples() -> None:
    model, args, kwargs = REAL["ctrdnn"]()
    program = torch.export.export(model, args, kwargs, strict=False)
    graph = read((program, (), {}))
    assert graph.inputs == ("sparse", "dense")
    assert torch.equal(graph.source.examples["dense"], args[1])
    assert graph.source.call.bind((), {"dense": args[1], "sparse": args[0]})["sparse"] is args[0]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch copies its own trees so
def test_a_functional_program_writes_its_buffers_back() -> None:
    model = SkipNet().train()
    inputs = (torch.randint(0, 11, (4, 3)), torch.rand(4, 3))
    program = torch.export.export(model, inputs, strict=False).run_decompositions({})
    graph = read((program, (), {}))
    writes = {written for names in graph.source.writes.values() for written in names}
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} <= writes


def test_shapes_of_a_traced_module_may_come_from_the_graph() -> None:
    module, inputs = skip_net()
    fx.passes.shape_prop.ShapeProp(module).propagate(*inputs)
    assert read((module, (), {})).shape("head") == (4, 11)


class NamedLikeItsNodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("add", torch.ones(2))
        self.register_buffer("x", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.add) * self.x


@pytest.mark.parametrize("trace", [lambda m: m, fx.symbolic_trace])
def test_a_value_gives_way_to_a_parameter_of_its_name(trace: Any) -> None:
    graph = read((trace(NamedLikeItsNodes()), (torch.ones(2),), {}))
    assert set(graph.parameters) == {"add", "x"}
    assert set(graph.values) & set(graph.parameters) == set()
    assert list(graph.source.call.bind((torch.ones(2),), {})) == list(graph.inputs) == list(graph.source.examples)


Pair = namedtuple("Pair", "a b")


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: dict[str, Tensor], y: list[Tensor], flag: bool = True) -> Any:
        both = x["one"] + y[0]
        return Pair(both, [y[1], None, {"scale": self.scale, "n": 3}]), x["two"].split(1)


def test_nested_structures_flatten_and_come_back() -> None:
    args = ({"one": torch.ones(2), "two": torch.ones(2, 2)}, [torch.ones(2), torch.zeros(2)])
    model = Structured()
    graph = read((model, args, {"flag": True}))
    call = graph.source.call
    assert list(call.bind(args, {"flag": True})) == list(graph.inputs) == ["x_one", "x_two", "y_0", "y_1"]
    result = model(*args)
    flat = call.disassemble(result)
    assert len(flat) == len(graph.outputs) == 5
    assert graph.outputs[1:3] == ("y_1", "scale")
    again = call.assemble(dict(zip(graph.outputs, flat, strict=True)))
    assert isinstance(again[0], Pair)
    assert again[0].b[2] == {"scale": model.scale, "n": 3}


class ReturnsATuple(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return {"parts": x.split(2), "shape": x.shape}


def test_a_traced_module_that_returns_a_tuple_of_one_node_is_taken_apart() -> None:
    graph = read((fx.symbolic_trace(ReturnsATuple()), (torch.ones(4),), {}))
    assert len(graph.outputs) == 3
    made = graph.source.call.assemble(dict(zip(graph.outputs, (1, 2, 4), strict=True)))
    assert made == {"parts": (1, 2), "shape": (4,)}


def test_the_batch_is_the_leading_dimension() -> None:
    model, args, _ = REAL["ctrdnn"]()
    assert read((model, args, {})).batch == 6
    assert read((model, args, {}), batch=6).batch_symbol is None
    program = torch.export.export(model, args)
    assert import_torch(program, batch=8).batch == 8


class TwoDims(nn.Module):
    def forward(self, x: Tensor, y: dict[str, Tensor]) -> Tensor:
        return torch.cat([x, y["k"]], 1).reshape(-1)


def test_dynamic_dimensions_go_by_the_users_names_and_numbers() -> None:
    batch, width = Dim("B", max=64), Dim("width")
    args = (torch.ones(4, 3), {"k": torch.ones(4, 5)})
    spec = {"x": {0: batch}, "y": {"k": {0: batch, 1: width}}}
    graph = read((TwoDims(), args, {}), dynamic_shapes=spec, batch=10, shapes={"width": 7})
    assert dict(graph.bindings) == {"B": 10, "width": 7}
    assert (graph.batch_symbol, graph.batch) == ("B", 10)
    assert graph.values["y_k"].shape == ("B", "width")
    assert graph.shape(graph.outputs[0]) == (10 * (3 + 7),)


def test_dynamic_dimensions_without_names_get_some() -> None:
    spec = ({0: Dim.DYNAMIC}, {"k": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}})
    graph = read((TwoDims(), (torch.ones(4, 3), {"k": torch.ones(4, 5)}), {}), dynamic_shapes=spec)
    assert dict(graph.bindings) == {"batch": 4, "y_k_1": 5}


@pytest.mark.parametrize(
    ("options", "error", "fault"),
    [
        ({"batch": 65}, InputError, r"'B'.*TwoDims.*\b65\b.*\b2\b.*\b64\b"),
        ({"batch": 0}, InputError, r"'batch'.*\b0\b.*\b1\b"),
        ({"shapes": {"widht": 2}}, UnknownNameError, "'widht'.*'width'"),
        ({"batch": 3, "shapes": {"B": 4}}, InputError, r"\b3\b.*'B'.*\b4\b"),
    ],
)
def test_numbers_that_do_not_fit_are_told(options: Any, error: type[Exception], fault: str) -> None:
    spec = ({0: Dim("B", min=2, max=64)}, {"k": {0: Dim("B", min=2, max=64), 1: Dim("width")}})
    args = (torch.ones(4, 3), {"k": torch.ones(4, 5)})
    with pytest.raises(error, match=fault):
        read((TwoDims(), args, {}), dynamic_shapes=spec, **options)


class SizeFromData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0] * 2


def test_a_size_that_depends_on_data_needs_a_number() -> None:
    with pytest.raises(InputError, match="'u0'"):
        read((SizeFromData(), (torch.ones(4),), {}))
    graph = read((SizeFromData(), (torch.ones(4),), {}), shapes={"u0": 3})
    assert graph.shape(graph.outputs[0]) == (3,)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class TakesATuple(nn.Module):
    def forward(self, pair: Any) -> Tensor:
        return pair[0] + 1


TRACED = fx.symbolic_trace(nn.Linear(2, 3))
ANY = torch.export.Dim.DYNAMIC


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantised_module_is_refused_by_its_name() -> None:
    model = nn.Sequential(nn.ReLU(), torch.ao.nn.quantized.dynamic.Linear(2, 2))
    with pytest.raises(InputError, match=r"module '1' \(Linear\).*onnxruntime\.quantization"):
        import_torch(model, (torch.ones(3, 2),))


@pytest.mark.parametrize(
    ("model", "args", "options", "fault"),
    [
        ("model.pt", (), {}, "torch.nn.Module"),
        (nn.Linear(2, 2), (), {}, "Linear.*traced"),
        (nn.Linear(2, 2), torch.ones(2), {}, "example_inputs.*Tensor"),
        (
            nn.Linear(2, 2),
            (torch.ones(3),),
            {},
            r"torch.export.*Linear.*dim",
        ),
        (
            nn.Sequential(nn.Linear(3, 3), Branches()),
            (torch.ones(3, 3),),
            {},
            r"module '1' \(Branches, test_torch_fx.py:\d+\).*data-dependent.*torch.fx.GraphModule",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)),
            (torch.ones(3, 4),),
            {},
            r"module '1' \(BatchNorm1d\).*momentum=0.1",
        ),
        (nn.Linear(2, 2), (torch.ones(1, 2),), {"dynamic_shapes": ({0: ANY},)}, r"shape\[0\]\. Fix: .* 2 or more"),
        (
            nn.GRU(2, 2),
            (torch.ones(5, 3, 2),),
            {"dynamic_shapes": ({0: ANY},)},
            r"constant \(5\).*out of dynamic_shapes",
        ),
        (
            TRACED,
            (),
            {},
            "'input'.*example_inputs",
        ),
        (TRACED, (torch.ones(1, 5),), {}, "fails"),
        (TRACED, (torch.ones(2), torch.ones(2)), {}, r"\b1\b.*input.*\b2\b"),
        (TRACED, (torch.ones(2),), {"dynamic_shapes": {}}, "dynamic_shapes.*nn.Module"),
        (fx.symbolic_trace(TakesATuple()), ((torch.ones(2),),), {}, "'pair'"),
    ],
)
def test_what_cannot_be_read_is_told(
    model: Any, args: Any, options: dict[str, Any], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=fault):
        import_torch(model, args, **options)
    assert capsys.readouterr().out == ""


class Unread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_parameters_that_no_node_reads_are_noted() -> None:
    graph = read((Unread(), (torch.ones(1, 2),), {}))
    assert set(graph.parameters) == {"used.weight", "used.bias"}
    (note,) = graph.source.notes
    assert note == "2 parameters of Unread are read by no node and are in no stage: unused.weight, unused.bias"


def test_a_model_that_cannot_be_traced_is_one_error_and_nothing_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """torch.export prints the graph it has so far, and logs, before it raises."""
    averaging = nn.BatchNorm2d(3, momentum=None).train()  # its factor is the value of a counter
    with pytest.raises(InputError, match=r"BatchNorm2d"):
        import_torch(averaging, (torch.randn(2, 3, 4, 4),))
    assert capfd.readouterr() == ("", "")
    assert [record.message for record in caplog.records if record.levelname != "DEBUG"] == []


@dataclass
class Two:
    """What nobody told PyTorch of."""

    first: Tensor
    second: Tensor


class GivesTwo(nn.Module):
    def forward(self, x: Tensor) -> Two:
        return Two(x + 1, x * 2)


def test_a_result_of_an_unknown_type_is_refused_with_how_to_make_it_known() -> None:
    expected = r"Found <class '.*Two'>.*tuples.*register_dataclass\(TYPE"
    with pytest.raises(InputError, match=expected):
        import_torch(GivesTwo(), (torch.ones(3),))


class ChangesItsInput(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        x[0].zero_()
        return y, x


def test_an_input_that_is_changed_through_a_view_and_returned_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"ChangesItsInput.*'x'"):
        read((ChangesItsInput(), (torch.ones(4, 2),), {}))
