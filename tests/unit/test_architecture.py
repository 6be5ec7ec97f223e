"""ARCHITECTURE.md draws the house that stands: its tree, its words and its walk."""

import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from test_house import package_folders

from heterps_compile.api import read_model
from heterps_compile.cost.layer_cost import layer_costs
from heterps_compile.passes.group_layers import group_nodes

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "heterps_compile"
TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
NAMED = re.compile(r"(?<![\w/.])((?:\w+/)+(?!\w)|(?:\w+/)*\w+\.py)")
"""Folders, with a slash behind, and Python files."""


def entries(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield what every entry of the drawing is about, and what is named in its lines."""
    drawing = text.partition("## The house")[2].split("```")[1]
    found: list[tuple[list[str], list[str]]] = []
    for line in drawing.strip().splitlines()[1:]:
        if re.match(r" {0,4}\w", line):
            heads = re.match(r"\s*((?:[\w]+(?:\.py|/)\s*)+)", line)
            assert heads is not None, line
            found.append((heads[1].split(), []))
        found[-1][1].extend(NAMED.findall(line))
    yield from found


def is_there(name: str, heads: list[str]) -> bool:
    """Whether a name is a file or folder of the entry, or a path from the package's own folder."""
    homes = [home for head in heads for top in (PACKAGE, ROOT) if (home := top / head).exists()]
    inside = [found for home in homes if home.is_dir() for found in home.rglob(name.rstrip("/"))]
    return bool(inside) or (PACKAGE / name).exists() or (ROOT / name).exists()


def missing(text: str) -> list[str]:
    return [name for heads, names in entries(text) for name in names if not is_there(name, heads)]


def test_what_the_drawing_names_is_there():
    assert missing(TEXT) == []


def test_every_folder_of_the_package_is_in_the_drawing():
    drawn = {part for _, names in entries(TEXT) for name in names for part in name.split("/")}
    folders = {part for name in package_folders() for part in name.split(".")[1:]}
    assert folders <= drawn


def walk() -> str:
    return TEXT.partition("## The walk of ResNet-50")[2]


def test_the_walk_visits_every_file_at_most_once_and_each_is_there():
    visited = re.findall(r"`([\w/]+\.py)`", walk())
    assert [path for path in visited if not (ROOT / path).is_file()] == []
    assert len(set(visited)) == len(visited) > 15


def test_the_first_numbers_of_the_walk_are_those_of_the_compiler():
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    if not path.is_file():
        pytest.skip("this release of onnx has no light models")
    graph = read_model(path, (), None, batch=None, shapes={}, dynamic_shapes=None)
    layers = group_nodes(graph)
    costs = layer_costs(layers)
    numbers = [
        f"{len(onnx.load(path).graph.node)} ONNX nodes become {len(graph.nodes)} graph nodes",
        f"{len(layers.layers)} layers",
        f"{sum(cost.flops for cost in costs) / 1e9:.3g} GFLOP",
        f"moves {costs[-1].moved_bytes / 2**20:.2f} MiB for {costs[-1].flops / 1e6:.2g} MFLOP",
    ]
    said = " ".join(walk().split())
    assert [number for number in numbers if number not in said] == []
