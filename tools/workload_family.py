"""Generated workloads of the published ones' family: operator graphs of transformers, wide convolution nets.

Times, transfers and sizes have the proportions of the published operator graphs (a matrix product far above the rest,
a CPU some twenty times slower, weights as nodes of their own that take memory and no time), with seeded jitter.
"""

import random

from heterps_compile.cost.workload import Workload, WorkloadNode


class _Builder:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self.nodes: list[WorkloadNode] = []
        self.edges: list[tuple[int, int]] = []

    def node(self, kind: str, time_ms: float, transfer_ms: float, sources: list[int], size_bytes: float = 1e6) -> int:
        jitter = self.random.uniform(0.8, 1.2)
        identity = len(self.nodes)
        name = f"{kind}{identity}"
        self.nodes.append(
            WorkloadNode(identity, name, time_ms * jitter, 20 * time_ms * jitter, size_bytes, transfer_ms * jitter)
        )
        self.edges += [(source, identity) for source in sources]
        return identity

    def product(self, source: int, time_ms: float) -> int:
        weight = self.node("weight", 0.0, 0.05, [], size_bytes=16e6)
        bias = self.node("bias", 0.0, 0.001, [], size_bytes=1e4)
        return self.node("add", 0.1, 0.9, [self.node("matmul", time_ms, 0.9, [source, weight]), bias])

    def chain(self, kind: str, source: int, length: int) -> int:
        for _ in range(length):
            source = self.node(kind, 0.1, 0.9, [source])
        return source

    def with_backward(self) -> None:
        """Give every node with a time a backward one of its colour, with mirrored edges and twice the time."""
        forward = [node for node in self.nodes if node.accelerator_ms > 0]
        twin = {node.id: len(self.nodes) + i for i, node in enumerate(forward)}
        mirrored = [(twin[target], twin[source]) for source, target in self.edges if source in twin and target in twin]
        self.nodes = [
            WorkloadNode(n.id, n.name, n.accelerator_ms, n.cpu_ms, n.size_bytes, n.transfer_ms, n.id)
            for n in self.nodes
        ] + [
            WorkloadNode(twin[n.id], f"{n.name}_grad", 2 * n.accelerator_ms, 2 * n.cpu_ms, n.size_bytes, n.transfer_ms,
                         n.id, True)
            for n in forward
        ]  # fmt: skip
        self.edges += [*mirrored, *((n.id, twin[n.id]) for n in forward)]

    def workload(self, name: str, accelerators: int) -> Workload:
        return Workload(name, tuple(self.nodes), tuple(self.edges), accelerators, 1, 16 * 2.0**30)


def transformer(
    layers: int, *, reshapes: int, training: bool = False, accelerators: int = 6, seed: int = 0
) -> Workload:
    """Layers of attention and feed-forward; queries, keys and values are parallel chains with so many reshapes each."""
    build = _Builder(seed)
    stream = build.node("embedding", 1.0, 0.9, [], size_bytes=1e8)
    for _ in range(layers):
        queries, keys, values = (build.chain("reshape", build.product(stream, 3.0), reshapes) for _ in range(3))
        scores = build.chain("softmax", build.node("matmul", 1.0, 2.0, [queries, keys]), 3)
        context = build.chain("transpose", build.node("matmul", 1.0, 0.9, [scores, values]), 2)
        attended = build.node("norm", 0.2, 0.9, [build.product(context, 3.0), stream])
        widened = build.chain("gelu", build.product(attended, 12.0), 4)
        stream = build.node("norm", 0.2, 0.9, [build.product(widened, 12.0), attended])
    build.product(stream, 12.0)
    if training:
        build.with_backward()
    return build.workload(f"transformer of {layers}{', training' if training else ''}", accelerators)


def inception(cells: int, *, branches: tuple[int, ...], accelerators: int = 6, seed: int = 0) -> Workload:
    """Cells of parallel convolution branches of the given lengths, joined by a concatenation."""
    build = _Builder(seed)
    stream = build.node("stem", 5.0, 0.5, [])
    for _ in range(cells):
        ends = []
        for length in branches:
            end = stream
            for i in range(length):
                end = build.node(("conv", "norm", "relu")[i % 3], (2.0, 0.5, 0.2)[i % 3], 0.3, [end])
            ends.append(end)
        stream = build.node("concat", 0.3, 0.5, ends)
    build.node("classifier", 2.0, 0.1, [stream])
    return build.workload(f"inception of {cells}", accelerators)
