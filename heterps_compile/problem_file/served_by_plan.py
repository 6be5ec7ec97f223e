"""What the tables that a given plan puts on servers take of its stages: rows, and what stages hold less.

A stage pulls the rows of its first micro-batch before its first forward and pushes the gradients of all behind its last
backward (``cost/served_rows.py``); the sizes of a message are those of the search (``cost/served_tables.py``): of a
table the rows of a batch, the whole table at most. Replicas of several types wait for the slowest of their networks.

Left out: the step (``prediction/predict_step.py``); times of layers, which stay as they are given; rows that samples
share.
"""

from heterps_compile.cost.memory import SAFETY_FACTOR
from heterps_compile.cost.served_rows import ServedRows

from .given_plan import GivenPlan, GivenStage
from .given_problem import GivenProblem, GivenTimes


def rows_of_stage(problem: GivenProblem, plan: GivenPlan, stage: GivenStage) -> ServedRows | None:
    """Return the rows that a stage looks up on servers; None where it has no table there."""
    served, server = plan.served, problem.known_pool.parameter_server
    if served is None or server is None:
        return None
    tables = [table for i in stage.layers for table in problem.layers[i].tables if table.name in served.tables]
    if not tables:
        return None
    rows_bytes, k = sum(table.rows_bytes(plan.batch) for table in tables), stage.width
    networks_s = []
    for name in {each.device for each in stage.replicas}:
        beta = problem.known_pool.device_type(name).data_parallel
        alone_s = rows_bytes / problem.known_pool.link(name, name).bytes_per_s
        networks_s.append(alone_s * (1 - beta + beta / k))
    return ServedRows(
        network_s=max(networks_s),
        servers_s=rows_bytes / (served.servers * server.bytes_per_s),
        requests_s=len(tables) * server.per_table_s,
        is_pushed=problem.training,
    )


def served_part(problem: GivenProblem, plan: GivenPlan, layer: int, times: GivenTimes) -> float:
    """Return the part of a layer's parameters, from 0 to 1, that lies on servers."""
    if plan.served is None or not times.parameter_bytes:
        return 0.0
    tables = problem.layers[layer].tables
    size = sum(table.size_bytes for table in tables if table.name in plan.served.tables)
    return min(1.0, size / times.tensor_parallel / times.parameter_bytes)


def held_by_a_server_bytes(problem: GivenProblem, plan: GivenPlan) -> float:
    """Return what each server holds, with the safety factor of all memory; 0 where there are none.

    Tables and the states of their optimiser: all that a parameter is held with but the gradient, which is of rows.
    """
    if plan.served is None:
        return 0.0
    held = problem.held_per_parameter - problem.training
    size = sum(problem.tables[name].size_bytes for name in plan.served.tables)
    return SAFETY_FACTOR * size * max(1.0, held) / plan.served.servers
