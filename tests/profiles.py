"""Profiles made by hand, for tests of what is made of them."""

from dataclasses import replace

from heterps_compile.cost.profile import (
    DeviceProfile,
    Fitted,
    Host,
    LayerPoint,
    LayerProfile,
    LinkProfile,
    Profile,
    Timing,
    Whole,
)

HOST = Host("Linux x86_64", "A processor", 2, 8 << 30)


def point(batch: int, forward_s: float, backward_s: float | None = None) -> LayerPoint:
    """Return a layer at a batch, of one FLOP and one byte a sample."""
    backward = None if backward_s is None else Timing(backward_s, 0.0)
    accumulate = None if backward_s is None else Timing(1.5 * backward_s, 0.0)
    return LayerPoint(batch, batch, batch, Timing(forward_s, 0.1 * forward_s), backward, accumulate, 5)


def layer(key: str, *points: LayerPoint, kind: str = "gemm") -> LayerProfile:
    return LayerProfile(f"layer {key}", (key * 24,), kind, "float32", 1, points)


def device(*layers: LayerProfile, name: str = "cpu", kind: str = "cpu") -> DeviceProfile:
    trained = layers[0].points[0].backward is not None
    mode = "training" if trained else "inference"
    return DeviceProfile(name, kind, "A processor", "torch", mode, 1, "cpu", layers)


CPU = replace(
    device(layer("a", point(8, 2e-3), point(32, 5e-3)), layer("b", point(8, 1e-3), point(32, 1e-3), kind="embedding")),
    wholes=(Whole(8, 3e-3, 3.3e-3), Whole(32, 6e-3, 6.1e-3)),
    compute_parallel=Fitted(0.8, 0.02, (1, 2)),
    link=LinkProfile(2e9, 1e8, 3e-5, 2e-6, "processes of one machine"),
)
PROFILE = Profile("a model", "2026-11-21T06:00:00Z", HOST, {"torch": "2.13.0"}, (CPU,))
