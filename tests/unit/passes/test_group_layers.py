"""Layers are anchors with the cheap nodes around them, in an order in which every edge runs forward."""

import torch
from sketch import layers_text, sketch
from torch import nn

from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.layers import verify_layers
from heterps_compile.passes.group_layers import group_nodes


def grouped(text: str) -> str:
    layers = group_nodes(sketch(text))
    verify_layers(layers)
    return layers_text(layers)


def test_cheap_nodes_join_the_anchor_before_them() -> None:
    assert (
        grouped("""
            in x 4x8
            par w 8x8
            par v 8x8
            gemm fc1 : x w -> a 4x8
            elementwise act : a -> b 4x8
            gemm fc2 : b v -> y 4x8
            out y
        """)
        == "fc1: fc1 act | fc2: fc2"
    )


def test_a_residual_sum_joins_the_later_branch() -> None:
    assert (
        grouped("""
            in x 4x8
            par w 8x8
            gemm fc1 : x w -> a 4x8
            gemm fc2 : a w -> b 4x8
            elementwise sum : a b -> y 4x8
            out y
        """)
        == "fc1: fc1 | fc2: fc2 sum"
    )


def test_work_on_inputs_goes_with_its_earliest_reader() -> None:
    assert (
        grouped("""
            in mask 4x8
            in x 4x8
            par w 8x8
            elementwise cast : mask -> m 4x8
            gemm fc1 : x w -> a 4x8
            gemm fc2 : a m -> b 4x8
            gemm fc3 : b m -> y 4x8
            out y
        """)
        == "fc1: fc1 | fc2: cast fc2 | fc3: fc3"
    )


def test_shape_arithmetic_goes_with_its_reader_and_shape_itself_with_its_tensor() -> None:
    assert (
        grouped("""
            in x 4x8
            par w 8x8
            gemm fc1 : x w -> a 4x8
            shape shape : a -> s 2
            elementwise half : s -> h 2
            gemm fc2 : a w -> b 4x8
            view reshape : b h -> y 4x8
            out y
        """)
        == "fc1: fc1 shape | fc2: half fc2 reshape"
    )


def test_the_shape_of_an_input_is_read_where_the_input_is_read() -> None:
    assert (
        grouped("""
            in x 4x8
            par w 8x8
            shape shape : x -> s 2
            gemm fc1 : x w -> a 4x8
            gemm fc2 : a w -> b 4x8
            view reshape : b s -> y 4x8
            out y
        """)
        == "fc1: shape fc1 | fc2: fc2 reshape"
    )


def test_an_anchor_that_reads_shapes_alone_stays_a_layer() -> None:
    assert (
        grouped("""
            in x 4x8
            par p 16x8
            par w 8x8
            shape shape : x -> s 1
            constant arange : s -> r 8
            embedding places : r p -> a 4x8
            gemm fc : x w -> b 4x8
            elementwise sum : a b -> y 4x8
            out y
        """)
        == "places: shape arange places | fc: fc sum"
    )


def test_what_reads_an_input_is_no_arithmetic_on_shapes() -> None:
    assert (
        grouped("""
            in x 4x8
            par w 8x8
            shape shape : x -> s 1
            constant zeros : s -> h 4x8
            recurrent lstm : x h w -> a 4x8
            view first : a -> b 4x8
            gemm fc : b w -> y 4x8
            out y
        """)
        == "lstm: shape zeros lstm first | fc: fc"
    )


def test_pieces_of_a_split_are_taken_where_it_is_made() -> None:
    assert (
        grouped("""
            in x 4x8
            par w 8x8
            view split : x -> pieces opaque
            view left : pieces -> a 4x8
            view right : pieces -> b 4x8
            gemm fc1 : a w -> c 4x8
            gemm fc2 : b w -> d 4x8
            elementwise sum : c d -> y 4x8
            out y
        """)
        == "fc1: split left fc1 right | fc2: fc2 sum"
    )


def test_a_model_without_anchors_is_one_layer() -> None:
    assert (
        grouped("""
            in x 4x8
            elementwise relu : x -> a 4x8 flops=32
            elementwise exp : a -> y 4x8 flops=64
            out y
        """)
        == "exp: relu exp"
    )


def test_nodes_that_feed_no_layer_form_the_last_one() -> None:
    assert (
        grouped("""
            in x 4x8
            in z 4x8
            par w 8x8
            elementwise copy : z -> c 4x8
            elementwise double : c -> d 4x8
            gemm fc1 : x w -> a 4x8
            gemm fc2 : a c -> y 4x8
            out y d
        """)
        == "fc1: fc1 | fc2: copy fc2 | double: double"
    )


class MovingAverage(nn.Module):
    """Reads a buffer before it moves it, as an observer does, and has work after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("average", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - self.average
        self.average.mul_(0.9).add_(0.1 * x.mean(0))
        made: torch.Tensor = self.layer(centred)
        return made


def test_what_a_moved_buffer_is_moved_by_is_in_the_layer_that_moves_it() -> None:
    layers = group_nodes(import_torch(MovingAverage(), (torch.randn(4, 8),)))
    verify_layers(layers)
    assert [layer.name for layer in layers.layers] == ["linear"]
