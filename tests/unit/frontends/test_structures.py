"""Models return types of libraries; a fresh process that does not import those gets plain objects of the same names."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heterps_compile
from heterps_compile.errors import InputError
from heterps_compile.frontends.structures import Structure, structure_from_json
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.runtime.launch.prepare import prepare
from heterps_compile.runtime.launch.run_options import RunOptions

LIBRARY = """
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

Pair = namedtuple("Pair", "low high")

@dataclass
class Scored:
    score: Any
    extra: Any = None

torch.export.register_dataclass(Scored, serialized_type_name="library.Scored")

@dataclass
class Output(OrderedDict):  # as transformers has it
    logits: Any = None
    states: Any = None

    def __post_init__(self):
        self.update((k, v) for k, v in (("logits", self.logits), ("states", self.states)) if v is not None)

pytree.register_pytree_node(
    Output,
    lambda value: (list(value.values()), list(value)),
    lambda values, keys: Output(**dict(zip(keys, values))),
    serialized_type_name="library.Output",
)

class Unnamed:
    def __init__(self, value):
        self.value = value

pytree.register_pytree_node(Unnamed, lambda u: ([u.value], None), lambda values, _: Unnamed(*values))
"""

# what a fresh process does with every result, printed as JSON
READ = """
import json, sys
from pathlib import Path

from heterps_compile.plan.source import read_plan
from heterps_compile.runtime.signature import check_signature

folders = sorted(Path(sys.argv[1]).iterdir())
for folder in folders:
    check_signature(read_plan(str(folder)))
assert "torch" not in sys.modules
import torch
import heterps_compile

out = {folder.name: heterps_compile.load(folder).run(torch.ones(2)) for folder in folders}
low, high = out["namedtuple"]
values, places = out["topk"]
numbers = lambda *tensors: [tensor.tolist() for tensor in tensors]
print(json.dumps({
    "namedtuple": numbers(out["namedtuple"].low, out["namedtuple"][0], low, out["namedtuple"].high, high),
    "dataclass": [*numbers(out["dataclass"].score), out["dataclass"].extra],
    "mapping": [*numbers(out["mapping"]["logits"], out["mapping"].logits, *out["mapping"][:1]), out["mapping"].states],
    "nested": [*numbers(out["nested"]["a"][0].score, out["nested"][2][1]), out["nested"]["n"], list(out["nested"])],
    "topk": numbers(out["topk"].values, out["topk"][1], values, places),
    "unnamed": [type(out["unnamed"]).__name__, *numbers(*out["unnamed"])],
    "imported": [name for name in sys.modules if name == "library"],
}))
"""


def forms(library: Any) -> dict[str, Callable[[Tensor], Any]]:
    return {
        "namedtuple": lambda x: library.Pair(x + 1, x + 2),
        "dataclass": lambda x: library.Scored(x + 1),
        "mapping": lambda x: library.Output(logits=x + 1),
        "nested": lambda x: {"a": [library.Scored(x + 1)], 2: (x, x + 2), "n": float("inf")},
        "topk": lambda x: torch.topk(x + torch.arange(2), 1),
        "unnamed": lambda x: library.Unnamed(x + 1),
    }


class Forms(nn.Module):
    def __init__(self, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(x)


@pytest.mark.slow  # a fresh process imports everything
def test_a_fresh_process_reads_every_result_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    import library  # type: ignore[import-not-found]  # noqa: PLC0415 # pyright: ignore[reportMissingImports] - just written

    for name, form in forms(library).items():
        compiled = heterps_compile.compile(Forms(form).eval(), (torch.ones(2),), method="greedy", verify=False)
        assert type(compiled.run(torch.ones(2))) is type(form(torch.ones(2)))
        compiled.save(tmp_path / "plans" / name)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "plans")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    two, three = [2.0, 2.0], [3.0, 3.0]
    assert json.loads(done.stdout) == {
        "namedtuple": [two, two, two, three, three],
        "dataclass": [two, None],
        "mapping": [two, two, two, None],
        "nested": [two, three, float("inf"), ["a", 2, "n"]],
        "topk": [[2.0], [1], [2.0], [1]],
        "unnamed": ["tuple", two],
        "imported": [],
    }
    _a_damaged_plan_is_refused_before_any_process_starts(tmp_path / "plans" / "mapping")


def _a_damaged_plan_is_refused_before_any_process_starts(folder: Path) -> None:
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace('\\"outputs\\": [', '\\"outputs\\": [\\"more\\", '))
    with pytest.raises(InputError, match=r"Output\('logits'.*\*.*\b1\b.*\b2\b"):
        prepare(RunOptions(directory=str(folder), data="random"))


def test_names_in_a_plan_are_data() -> None:
    hostile = ["__class__", "__init__", "os.system('true')", "\x1b[31m", "keys"]
    content = {"kind": "mapping", "keys": hostile, "parts": ["*"] * 5, "absent": ["__dict__"], "type": "os.system"}
    for kind in ("mapping", "record", "named"):
        made = structure_from_json(content | {"kind": kind}).build([1, 2, 3, 4, 5])
        assert type(made).__name__ in ("Mapped", "Record", "Named")
        assert made.__class__ is type(made)
    assert "\x1b" not in str(structure_from_json(content))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"kind": "module", "parts": []}, "structure"),
        ({"kind": "named", "keys": ["a"], "parts": ["*", "*"]}, r"\b2\b.*\b1\b"),
        ({"kind": "record", "keys": [1], "parts": ["*"]}, "text"),
        ({"kind": "dict", "keys": [["a"]], "parts": ["*"]}, r"\b1\b.*\b1\b"),
        ('[1, {"type": "os.system", "context": "[1]", "children_spec": []}]', r"structure|\b0 parts"),
        ("!a TreeSpec of before", "structure"),
    ],
)
def test_what_is_no_structure_is_told(content: Any, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        structure_from_json(content)


def test_a_structure_deeper_than_any_models_is_refused() -> None:
    deep: Any = "*"
    for _ in range(5000):
        deep = {"kind": "tuple", "parts": [deep]}
    with pytest.raises(InputError, match=r"\b60\b"):
        structure_from_json(deep)


def test_structures_of_older_plans_are_read() -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    output = {"type": "transformers.modeling_outputs.Two", "context": '["a", "b"]', "children_spec": [leaf, leaf]}
    whole = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf, output]}
    star = Structure("leaf")
    assert structure_from_json(json.dumps([1, whole])) == Structure(
        "tuple", (star, Structure("mapping", (star, star), ("a", "b"), (), "Two"))
    )


def test_a_dict_key_that_no_file_can_hold_is_refused_when_the_model_is_read() -> None:
    with pytest.raises(InputError, match=r"\b1\b.*\b2\b"):
        import_torch(Forms(lambda x: {(1, 2): x + 1}), (torch.ones(2),))
