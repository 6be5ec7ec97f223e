"""Names from a model are data: whatever they are, the written stage is right and nothing of them is run."""

import keyword
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_models import BACKEND, cut_into, run

from heterps_compile.backends.local_names import LocalNames
from heterps_compile.backends.torch.naming import MODULE_LEVEL, attribute
from heterps_compile.frontends.torch_fx import import_torch

MARK = Path(tempfile.gettempdir()) / "heterps_compile_was_owned"
HOSTILE = (
    f'"); open({str(MARK).replace(".", "_")!r}, "w") #',
    "x'''\"\"\"; import os; os_system('x') #",
    "__/__/etc/passwd",
    "line\nbreak\r\n\x00\x1b[31m\u2028",
    "class",
    "None",
    "match",
    "self",
    "torch",
    "inputs",
    "outputs",
    "at",
    "hold",
    "F",
    "__dunder",
    "__name__x",
    "naïve",
    "ﬁ",  # Python would read it as "fi"
    "\u202egnp",
    "a b",
    "a-b",
    "a_b",
    "0",
    "00",
    "-1",
    "\u0661",  # a digit, though not one of ASCII
    "x" * 10_000,
    "@@FORWARD@@",
    "{name}",
    "\\",
    "%s",
)

allowed = st.text(min_size=1, max_size=12).filter(lambda s: "." not in s and not hasattr(nn.Module(), s))
names = st.one_of(st.sampled_from(HOSTILE), st.sampled_from(keyword.kwlist), allowed)


class Named(nn.Module):
    """Three parameters, a buffer and a submodule under names of the caller's choosing."""

    def __init__(self, five: list[str]) -> None:
        super().__init__()
        for i, name in enumerate(five[:3]):
            self.register_parameter(name, nn.Parameter(torch.full((3,), float(i + 2))))
        self.register_buffer(five[3], torch.full((3,), 7.0))
        self.add_module(five[4], nn.Linear(3, 3))
        self.five = five

    def forward(self, x: Tensor) -> Tensor:
        for name in self.five[:3]:
            x = x * self._parameters[name] + 1
        return self._modules[self.five[4]](x) + self._buffers[self.five[3]]


@pytest.mark.slow  # torch.export takes seconds
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(five=st.lists(names, min_size=5, max_size=5, unique=True))
@example(five=list(HOSTILE[:5]))
@example(five=list(HOSTILE[5:10]))
@example(five=list(HOSTILE[10:15]))
@example(five=list(HOSTILE[15:20]))
@example(five=list(HOSTILE[20:25]))
@example(five=list(HOSTILE[25:30]))
def test_any_names_are_written_and_read_back(five: list[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Named([name if not hasattr(nn.Module(), name) else f"{name}_" for name in five]), torch.ones(2, 3)
    graph = import_torch(model, (x,))
    partition = cut_into(graph, 2)
    stages = BACKEND.build(graph, partition)
    files = BACKEND.write(graph, stages, partition.stages, tmp_path)
    again = BACKEND.read(tmp_path, files, partition.stages)
    expected = model(x)
    for each in (stages, again):
        torch.testing.assert_close(run(graph, partition, each, {"x": x})[graph.outputs[0]], expected)
        assert {key for stage in each for key in stage.state_dict()} == set(model.state_dict())
    assert not MARK.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(name for pair in files for name in pair)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("layer.0.weight", "self.layer[0].weight"),
        ("class.weight", "self.at('class').weight"),
        ("a.inputs", "self.a.at('inputs')"),
        ("training.x", "self.at('training').x"),
        ("_private", "self.at('_private')"),
        ("00.x", "self.at('00').x"),
        ("ﬁ", "self.at('\\ufb01')"),
        ('we"ird\n', "self.at('we\"ird\\n')"),
    ],
)
def test_a_plain_name_is_an_attribute_and_any_other_a_string(name: str, source: str) -> None:
    assert attribute(name) == source


def test_local_variables_are_identifiers_of_their_own() -> None:
    names = LocalNames(MODULE_LEVEL)
    wishes = ["x", "x", "a b", "a-b", "class", "print", "torch", "", "1st", "é", "y" * 10_000, "y" * 10_001]
    made = [names.new(wish) for wish in wishes]
    assert made[:9] == ["x", "x_1", "a_b", "a_b_1", "class_1", "print_1", "torch_1", "v", "v1st"]
    assert len(set(made)) == len(made)
    assert all(name.isidentifier() and not keyword.iskeyword(name) and len(name) < 60 for name in made)
