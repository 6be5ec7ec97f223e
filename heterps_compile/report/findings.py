"""What a report tells of a plan: the plan, and as much of what it was made from as is at hand.

Left out: how it looks (``pictures/``, ``html.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from heterps_compile.bench.comparison import Comparison
from heterps_compile.cost.problem import Problem
from heterps_compile.ir.graph import Node
from heterps_compile.ir.layer_titles import after_node, before_anchor, join_of, tells_nothing
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.plan.plan import Plan
from heterps_compile.plan_diff.compare_plans import PlanDiff
from heterps_compile.plan_diff.sentences import words_of_new_layers, words_of_old_layers
from heterps_compile.simulation.plan_steps import Step, plan_loads, simulate_plan

from .pictures.bars import memory_bars, number_bars, price_bars, rule_bars
from .pictures.layer_graph import LayerEdge, LayerView, layer_graph, older_graph, plan_layers
from .pictures.method_bars import method_bars
from .pictures.pareto import Point, has_choice, pareto_front
from .pictures.svg import WIDTH, Picture
from .pictures.timeline import memory_over_time, timeline
from .rows import LayerRow

_ROUNDS, _MANY_REPLICAS, _MOST_STEPS = 4, 50, 200  # of inference in the timeline


@dataclass(frozen=True)
class Findings:
    """A plan and what is known about it; everything but the plan may be missing.

    Attributes:
        plan: The plan.
        rows: Its layers with their work.
        layers: The layer graph, for edges.
        problem: Times and prices of every layer on every device type.
        points: Throughput against price.
        comparison: Methods compared.
        older: An older plan to compare with.
        changes: What is different from that one.
    """

    plan: Plan
    rows: Sequence[LayerRow] = ()
    layers: LayerGraph | None = None
    problem: Problem | None = None
    points: Sequence[Point] = ()
    comparison: Comparison | None = None
    older: Plan | None = None
    changes: PlanDiff | None = None

    @cached_property
    def step(self) -> Step:
        """Return the plan's own step; of inference as many as keep every replica busy for a while."""
        loads, chosen = plan_loads(self.plan), self.plan.schedule
        most = max(stage.replicas for stage in self.plan.stages)
        rounds = _ROUNDS if most <= _MANY_REPLICAS else 1
        steps = -(-(rounds * most + len(self.plan.stages)) // chosen.micro_batches)
        return simulate_plan(self.plan, loads, chosen.name, chosen.micro_batches, min(steps, _MOST_STEPS))

    @cached_property
    def views(self) -> list[LayerView]:
        """Return the layers as the picture of the graph shows them."""
        changed = {} if self.changes is None else words_of_new_layers(self.changes)
        if not self.rows:
            return [replace(view, change=changed.get(view.name, "")) for view in plan_layers(self.plan)]
        joins = self._joins
        kinds = [row.what.removesuffix(f", {row.title}") or row.kind for row in self.rows]
        return [
            LayerView(
                name=row.name,
                stage=row.stage,
                device=row.device,
                kind=kinds[index],
                label=row.cost.label,
                change=changed.get(row.name, ""),
                title=kinds[index] if self.layers is not None and tells_nothing(self.layers, index) else row.title,
                join=joins[index].op.rpartition("::")[2].removeprefix("aten.").partition(".")[0].lower()
                if index in joins
                else "",
            )
            for index, row in enumerate(self.rows)
        ]

    @cached_property
    def _joins(self) -> dict[int, Node]:
        """Return the nodes that join layers' results with those of others, by the index of the layer."""
        if self.layers is None:
            return {}
        found = ((index, join_of(self.layers, index)) for index in range(len(self.layers.layers)))
        return {index: node for index, node in found if node is not None}

    @cached_property
    def edges(self) -> list[tuple[LayerEdge, int]]:
        """Return every value that passes between layers, for each reader, with its bytes."""
        if self.layers is None:
            return []
        layers, graph = self.layers, self.layers.graph
        joined = {index: after_node(layers, index, node) for index, node in self._joins.items()}
        before = {index: before_anchor(layers, index) for index in joined}
        found = []
        for edge in layers.edges:
            for consumer in edge.consumers if edge.producer >= 0 else ():
                readers = {i for i in graph.consumers[edge.value] if layers.layer_of[i] == consumer}
                after = graph.producer[edge.value] in joined.get(edge.producer, ())
                late = readers - before[consumer] if consumer in joined else frozenset[int]()
                found += [
                    (LayerEdge(edge.producer, consumer, after, into), edge.size_bytes)
                    for into in sorted({i in late for i in readers})
                ]
        return found

    def _before(self, width: float) -> list[Picture]:
        """Draw the older plan, and its numbers beside today's."""
        if self.older is None or self.changes is None:
            return []
        words = words_of_old_layers(self.changes)
        views = [replace(view, change=words.get(view.name, "")) for view in plan_layers(self.older)]
        return [older_graph(self.older, views, self.plan, width=width), number_bars(self.changes.numbers, width=width)]

    def graph(self, width: float = WIDTH) -> Picture:
        """Draw the layers in their stages."""
        return layer_graph(self.plan, self.views, [edge for edge, _ in self.edges], width=width)

    def pictures(self, width: float = WIDTH) -> list[Picture]:
        """Draw every picture that there is something to draw for, so many pixels wide."""
        drawn = [
            self.graph(width),
            *self._before(width),
            timeline(self.plan, self.step, width=width),
            memory_over_time(self.plan, self.step, width=width),
            memory_bars(self.plan, width=width),
            price_bars(self.plan, width=width),
        ]
        if any(stage.sync is not None for stage in self.plan.stages):
            drawn.append(rule_bars(self.plan, width=width))
        if has_choice(self.plan, self.points):
            drawn.append(pareto_front(self.plan, self.points, width=width))
        if self.comparison is not None:
            drawn.append(method_bars(self.comparison, width=width))
        return drawn
