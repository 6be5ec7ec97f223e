"""The pipeline of the reference simulator that a problem file and a plan of it describe, from docs/problem-file.md.

Not covered: replicas fed by speed, rules other than the all-reduce, tables on servers, several units in one machine,
measured messages.
"""

from reference_step import Boundary, Pipeline, Stage, Value

from heterps_compile.problem_file.given_plan import GivenPlan, GivenStage
from heterps_compile.problem_file.given_problem import GivenProblem


def pipeline_of(problem: GivenProblem, plan: GivenPlan) -> Pipeline:
    """Read a plan's stages, replica by replica, and what they exchange."""
    stage_of = {layer: number for number, stage in enumerate(plan.stages) for layer in stage.layers}
    values = []
    for edge in problem.edges:
        maker = stage_of[problem.position[edge.producer]]
        readers = tuple(sorted({stage_of[problem.position[name]] for name in edge.readers} - {maker}))
        if readers and edge.bytes_per_sample:
            values.append(Value(maker, readers, edge.bytes_per_sample * plan.micro_batch))
    return Pipeline(
        tuple(_stage(problem, plan, stage) for stage in plan.stages),
        tuple(_boundary(problem, left, right) for left, right in zip(plan.stages[:-1], plan.stages[1:], strict=True)),
        tuple(values),
        plan.micro_batches,
        plan.schedule,
        problem.training,
        problem.step_overhead_s,
    )


def _stage(problem: GivenProblem, plan: GivenPlan, stage: GivenStage) -> Stage:
    """Lengthen micro-batches by what replicas do not divide, and sum gradients in one ring over the slowest network."""
    width, size = stage.width, plan.micro_batch
    forward, backward, update, held, kept = [], [], [], [], []
    whole = sum if problem.training else max
    for each in stage.replicas:
        times = [problem.layers[i].by_group[each.device, each.tensor_parallel] for i in stage.layers]
        of_type = problem.known_pool.device_type(each.device).compute_parallel
        passes = [[one.forward_time_s(n) + one.backward_time_s(n) for one in times] for n in (size, plan.batch)]
        serial = sum((1 - one.parallel(of_type)) * whole_s for one, whole_s in zip(times, passes[1], strict=True))
        longer = 1 + (width - 1) * serial / plan.micro_batches / sum(passes[0]) if sum(passes[0]) else 1.0
        forward += [longer * sum(one.forward_time_s(size) for one in times)] * each.count
        if problem.training:
            backward += [longer * sum(one.backward_time_s(size) for one in times)] * each.count
        update.append(sum(one.update_s for one in times))
        held.append(sum(one.parameter_bytes for one in times))
        kept.append(whole(one.activation_bytes_per_sample for one in times) * size)
    names = {each.device for each in stage.replicas}
    links = [problem.known_pool.link(name, other) for name in names for other in names]
    ring = max(held) / min(link.bytes_per_s for link in links) / width + max(link.latency_s for link in links)
    return Stage(
        tuple(forward),
        tuple(backward),
        2 * (width - 1) * ring if problem.training and max(held) else 0.0,
        max(update) if problem.training else 0.0,
        held_bytes=problem.held_per_parameter * max(held),
        kept_bytes=max(kept),
    )


def _boundary(problem: GivenProblem, left: GivenStage, right: GivenStage) -> Boundary:
    """Take the slowest rate and the longest latency of the pairs of types that talk, from either end."""
    pairs = [(a.device, b.device) for a in left.replicas for b in right.replicas]
    links = [problem.known_pool.link(*pair) for a, b in pairs for pair in ((a, b), (b, a))]
    return Boundary(min(link.bytes_per_s for link in links), max(link.latency_s for link in links))
