"""What a profile says of a pipeline before it runs: the time of every stage, and the pace of the whole.

A rank does the actions of the schedule in order. An action takes what the profile says of its layers, and what the
runtime adds: a fixed part inside of it (seeding random numbers, the loss), one outside (reading, receiving, sending),
and one for every byte that is received or sent. The ranks share the machine's cores (``schedule/shared_cores.py``);
messages take the time of the measured link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from heterps_compile.cost.profile import LinkProfile
from heterps_compile.cost.roofline import Phases
from heterps_compile.ir.graph import Graph
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.runtime.pipeline.routes import Route, make_routes
from heterps_compile.schedule.order import Phase
from heterps_compile.schedule.shared_cores import Job, run_jobs

_STEPS = 8


@dataclass(frozen=True, slots=True)
class Overheads:
    """What the runtime adds to an action, in seconds; measured on models that compute next to nothing.

    Attributes:
        inside_s, outside_s: Of an action, by phase: within what the runtime calls the action, and around it.
        loss_s: More inside of an action of the last stage, which has the loss.
        byte_s: For every byte received or sent.
        together: How much longer computation takes while all cores are busy.
        crowded: How much longer a step takes where ranks are more than cores, and the system changes between them.
    """

    inside_s: Mapping[str, float]
    outside_s: Mapping[str, float]
    loss_s: Mapping[str, float]
    byte_s: float
    together: float = 1.0
    crowded: float = 1.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one run: the time of an action by stage and phase, and of a step where step follows step."""

    actions_s: Mapping[tuple[int, str], float]
    step_s: float


def route_bytes(graph: Graph, route: Route, batch: int, *, is_backward: bool) -> float:
    """Give the bytes of a message at a micro-batch's size; only floats have gradients."""
    names = [n for n in route.values if not is_backward or graph.values[n].dtype.startswith(("float", "bfloat"))]
    return sum(graph.size_bytes(name) for name in names) * batch / graph.batch


def predict(
    graph: Graph,
    plan: Plan,
    layout: Layout,
    times: Sequence[Phases],
    overheads: Overheads,
    link: LinkProfile,
    cores: int,
) -> Prediction:
    """Predict a run whose stages have one replica each."""
    size, count = layout.micro_batch_size, layout.micro_batches
    routes = make_routes(plan.stages, plan.graph_outputs)
    actions = [layout.actions(rank) for rank in range(layout.world_size)]
    place = {
        (layout.stage_of(a), a.micro_batch, a.phase): (rank, at)
        for rank, queue in enumerate(actions)
        for at, a in enumerate(queue)
    }
    actions_s: dict[tuple[int, str], list[float]] = {}
    queues: list[list[Job]] = [[] for _ in actions]
    for step in range(_STEPS):
        for rank, queue in enumerate(actions):
            seen: set[int] = set()
            for at, action in enumerate(queue):
                stage, i, phase = layout.stage_of(action), action.micro_batch, action.phase
                backward = phase is Phase.BACKWARD
                own_s = times[stage].forward_s
                if backward:
                    own_s = times[stage].accumulate_s if stage in seen else times[stage].backward_s
                    seen.add(stage)
                own_s += overheads.inside_s[phase]
                if layout.training and stage == layout.stage_count - 1:
                    own_s += overheads.loss_s[phase]
                actions_s.setdefault((stage, str(phase)), []).append(own_s)
                moved_bytes, needs = 0.0, []
                for route in routes:
                    reads, makes = (route.source, route.target) if backward else (route.target, route.source)
                    if stage in (reads, makes):
                        size_bytes = route_bytes(graph, route, size, is_backward=backward)
                        moved_bytes += size_bytes
                        if stage == reads and size_bytes:
                            worker, where = place[makes, i, phase]
                            travels_s = link.latency_s + size_bytes / link.bytes_per_s
                            needs.append((worker, step * len(actions[worker]) + where, travels_s))
                if not layout.training:
                    needs += _taken(routes, layout, stage, step * count + at, link.latency_s)
                work_s = own_s + overheads.outside_s[phase] + overheads.byte_s * moved_bytes
                queues[rank].append(Job(work_s, tuple(needs)))
    spans = run_jobs(queues, cores, overheads.together)
    ends_s = [spans[-1][(step + 1) * len(actions[-1]) - 1][1] for step in range(_STEPS)]
    step_s = (ends_s[-1] - ends_s[_STEPS // 2 - 1]) / (_STEPS - _STEPS // 2)
    step_s *= overheads.crowded if len(queues) > cores else 1.0
    together = overheads.together if len(queues) > 1 else 1.0
    return Prediction({key: together * median(found) for key, found in actions_s.items()}, step_s)


def _taken(
    routes: Sequence[Route], layout: Layout, stage: int, job: int, latency_s: float
) -> list[tuple[int, int, float]]:
    """Say when the message before a job can be sent: its like of the step before has been taken.

    A reader takes a message as it begins with it, which is when it has ended the one before.
    """
    last = job - layout.micro_batches - 2
    readers = [layout.owner(route.target, 0) for route in routes if route.source == stage]
    return [(reader, last, latency_s) for reader in readers] if last >= 0 else []
