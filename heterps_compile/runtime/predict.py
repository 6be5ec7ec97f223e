"""What a run is thought to take where its ranks share a machine's cores: the time of every stage, and of a step.

A rank does the actions of the schedule in order. An action takes what its layers take, and what the runtime adds: a
fixed part inside of it (seeding random numbers, the loss), one outside (reading, receiving, sending), and one for every
byte that is received or sent. Ranks share the cores (``schedule/shared_cores.py``); messages take the time of the link.

A plan gives every replica a core of its own. Where a machine has fewer cores than the run has ranks, a step takes what
:func:`step_on_cores` says at least: by the plan's times, nothing added.

Left out: gradients that replicas add up, parameter servers, the optimizer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from heterps_compile.cost.profile import LinkProfile
from heterps_compile.cost.roofline import Phases
from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.order import Action, Phase
from heterps_compile.schedule.shared_cores import Job, run_jobs
from heterps_compile.schedule.zero_bubble import parts_of_backward

from .pipeline.layout import Layout
from .pipeline.routes import Route, make_routes

_STEPS = 10
_MOST = 50_000
"""Micro-batches times the square of the ranks: what a prediction takes grows with it, to half a second here."""

_COUNTED = slice(3, 8)
"""Of the steps: in the first, ranks are not yet as far ahead of their readers as they get; in the last, some are done.
"""


@dataclass(frozen=True, slots=True)
class Overheads:
    """What the runtime adds to an action, in seconds.

    Attributes:
        inside_s, outside_s: Of an action, by phase: within what the runtime calls the action, and around it.
        loss_s: More inside of an action of the last stage, which has the loss.
        byte_s: For every byte received or sent.
        together: How much longer computation takes while all cores are busy.
        crowded: How much longer a step takes where ranks are more than cores, and the system changes between them.
        switched: How much longer an action takes there, in caches that others have used.
    """

    inside_s: Mapping[str, float] = field(default_factory=dict)
    outside_s: Mapping[str, float] = field(default_factory=dict)
    loss_s: Mapping[str, float] = field(default_factory=dict)
    byte_s: float = 0.0
    together: float = 1.0
    crowded: float = 1.0
    switched: float = 1.0


def _one_byte(_route: Route, _is_backward: bool) -> float:
    return 1.0


@dataclass(frozen=True, slots=True)
class Messages:
    """What goes between ranks.

    Attributes:
        size_bytes: Of a route's message, and of its gradients; nobody waits for a message of 0 bytes.
        link: That carries them; None for one that takes no time.
    """

    size_bytes: Callable[[Route, bool], float] = _one_byte
    link: LinkProfile | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one run: the time of an action by stage and phase, and of a step where step follows step."""

    actions_s: Mapping[tuple[int, str], float]
    step_s: float


def step_on_cores(plan: Plan, layout: Layout, cores: int) -> float:
    """Return what a step takes at least on so many cores, by the plan's times of a micro-batch; 0 where it has none.

    It is 0 too where replicas of a stage differ, and where working it out would hold up the run, with hundreds of
    micro-batches on many ranks.

    Args:
        plan: The plan.
        layout: Of the run; its replicas and schedule may be others than the plan's.
        cores: That all ranks share.
    """
    stages, count = plan.stages, plan.schedule.micro_batches
    each = [stage.micro_batch(count) for stage in stages]
    is_known = all(one.forward_s > 0 for one in each) and all(s.kind == "cpu" and not s.mixed for s in stages)
    is_alike = layout.micro_batch_size == plan.batch / count and layout.training == (plan.request.mode == "training")
    if not (is_known and is_alike):
        return 0.0
    if layout.micro_batches * layout.world_size**2 > _MOST:
        return 0.0
    times = [Phases(one.forward_s, one.backward_s, one.backward_s) for one in each]
    return predict(layout, make_routes(stages, plan.graph_outputs), times, cores).step_s


def predict(
    layout: Layout,
    routes: Sequence[Route],
    times: Sequence[Phases],
    cores: int,
    *,
    overheads: Overheads | None = None,
    messages: Messages | None = None,
) -> Prediction:
    """Predict a run.

    Args:
        layout: Who does what.
        routes: Between its stages.
        times: [S], of a micro-batch of every stage.
        cores: That all ranks share.
        overheads: What the runtime adds; None for nothing.
        messages: Between ranks; None for some that take no time.
    """
    run = _Run(layout, routes, messages or Messages())
    added = overheads or Overheads()
    actions_s: dict[tuple[int, str], list[float]] = {}
    queues: list[list[Job]] = [[] for _ in run.actions]
    for step in range(_STEPS):
        for rank, queue in enumerate(run.actions):
            seen: set[tuple[int, Phase]] = set()
            parts = parts_of_backward(queue)
            for at, action in enumerate(queue):
                stage, phase = layout.stage_of(action), action.phase
                own_s = times[stage].forward_s
                if phase is not Phase.FORWARD:
                    own_s = times[stage].accumulate_s if (stage, phase) in seen else times[stage].backward_s
                    own_s *= parts[phase]
                    seen.add((stage, phase))
                own_s += added.inside_s.get(phase, 0.0)
                if layout.training and stage == layout.stage_count - 1:
                    own_s += added.loss_s.get(phase, 0.0)
                actions_s.setdefault((stage, str(phase)), []).append(own_s)
                around_s = added.outside_s.get(phase, 0.0) + added.byte_s * run.moved_bytes(action)
                needs = [*run.messages(step, action), *run.taken(step, rank, at)]
                queues[rank].append(Job(own_s + around_s, tuple(needs)))
    spans = run_jobs(queues, cores, added.together)
    ends_s = [spans[-1][(step + 1) * len(run.actions[-1]) - 1][1] for step in range(_STEPS)]
    counted = ends_s[_COUNTED]
    step_s = (counted[-1] - counted[0]) / (len(counted) - 1)
    together = added.together if len(queues) > 1 else 1.0
    if len(queues) > cores:
        step_s, together = step_s * added.crowded, together * added.switched
    return Prediction({key: together * median(found) for key, found in actions_s.items()}, step_s)


class _Run:
    """Who waits for whom in steps that follow one another."""

    def __init__(
        self,
        layout: Layout,
        routes: Sequence[Route],
        messages: Messages,
    ) -> None:
        self.actions = [layout.actions(rank) for rank in range(layout.world_size)]
        link = messages.link
        self._layout, self._routes, self._message_bytes = layout, routes, messages.size_bytes
        self._latency_s = link.latency_s if link is not None else 0.0
        self._byte_s = 1 / link.bytes_per_s if link is not None else 0.0
        self._place = {
            (layout.stage_of(a), a.micro_batch, a.phase): (rank, at)
            for rank, queue in enumerate(self.actions)
            for at, a in enumerate(queue)
        }

    def moved_bytes(self, action: Action) -> float:
        """Return what an action receives and sends."""
        if action.phase is Phase.WEIGHT:
            return 0.0
        stage = self._layout.stage_of(action)
        ends = [route for route in self._routes if stage in (route.source, route.target)]
        return sum(self._message_bytes(route, action.phase is Phase.BACKWARD) for route in ends)

    def messages(self, step: int, action: Action) -> Iterator[tuple[int, int, float]]:
        """Yield the jobs whose messages an action waits for, and how long those travel."""
        stage, is_backward = self._layout.stage_of(action), action.phase is Phase.BACKWARD
        for route in self._routes if action.phase is not Phase.WEIGHT else ():
            reads, makes = (route.source, route.target) if is_backward else (route.target, route.source)
            size_bytes = self._message_bytes(route, is_backward)
            if stage == reads and size_bytes:
                rank, at = self._place[makes, action.micro_batch, action.phase]
                travels_s = self._latency_s + size_bytes * self._byte_s
                yield rank, step * len(self.actions[rank]) + at, travels_s

    def taken(self, step: int, rank: int, at: int) -> Iterator[tuple[int, int, float]]:
        """Say when a rank can go on in inference: once its last message has left, that of the step before being taken.

        A reader takes a message as it begins with it, which is when it has ended the action before.
        """
        sent_in, last = divmod(step * len(self.actions[rank]) + at - 1, len(self.actions[rank]))
        if self._layout.training or sent_in < 1:
            return
        sent = self.actions[rank][last]
        for route in self._routes:
            if route.source == self._layout.stage_of(sent):
                reader, where = self._place[route.target, sent.micro_batch, Phase.FORWARD]
                job = (sent_in - 1) * len(self.actions[reader]) + where - 1
                if job >= 0:
                    yield reader, job, self._latency_s
