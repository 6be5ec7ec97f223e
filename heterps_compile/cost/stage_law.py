"""The law of a stage, written once: Python runs it on arrays, numba compiles the same source for single stages.

Legend (HeterPS, arXiv 2111.10635, section 4): C the computation of a batch on one unit, D its data movement, F and E
their serial parts, s an all-reduce among endless replicas, g the storage behind all replicas, k replicas, M
micro-batches; own(M) and own(1) one micro-batch and the batch undivided, alone on a unit::

    CT(k)     = F + (C - F) / k
    DT(k)     = E + (D - E) / k + s ring(k)
    ET(k)     = max(CT(k), DT(k), g)                                            a batch in the steady state
    busy(k)   = max( k CT(k) / M + own(M) - own(1) / M,                         a micro-batch on one replica:
                     (k DT'(k) + (M - 1) latency) / M + rows )                  what M cannot divide is paid M times
    own(M)    = forward + (backward + (r - 1) accumulate) / r                   r = max(1, M / k): the first of a
                                                                                replica makes gradients, others add
    forward   = busy(k) forward / own(M),  in which data moves alone for the part that exceeds computation

DT' is DT without the all-reduce, which follows the last backward (``schedule/simulate.py``).

Only ``+ - * /`` and the four functions imported here: ``passes/placement/compiled_loops.py`` puts a branch in place of
``where``, which makes an array of a number. Arguments and results are numbers, or arrays that broadcast together.
"""

from typing import Any, NamedTuple, TypeAlias

from numpy import ceil, maximum, minimum, where

Values: TypeAlias = Any  # a number or an array


class Alone(NamedTuple):
    """What a stage takes whatever its replicas are.

    Attributes:
        forward_s, backward_s: One micro-batch on a unit.
        accumulate_s: Its backward where it adds to gradients.
        whole_s: Both passes of the batch undivided.
        latency_s: All messages between stages that it receives and sends with a batch.
        rows_s: Rows of servers that move beside one micro-batch.
        usual: Share of the forward where neither pass takes time.
    """

    forward_s: Values
    backward_s: Values
    accumulate_s: Values
    whole_s: Values
    latency_s: Values
    rows_s: Values
    usual: Values


class Passes(NamedTuple):
    """The passes of one micro-batch on one replica.

    Attributes:
        forward_s, backward_s: Both together are as long as it occupies the replica.
        moving_s: Part of the forward in which data moves and nothing is computed.
    """

    forward_s: Values
    backward_s: Values
    moving_s: Values


def ring_part(units: Values, per_machine: Values, inner: Values) -> Values:
    """Compute the part of s that k replicas take; it never falls with k.

    Args:
        units: k.
        per_machine: Units of a machine, 1 where each is alone.
        inner: Bandwidth of a machine's card over the bandwidth inside.
    """
    return inner * (1 - 1 / minimum(units, per_machine)) + (1 - 1 / ceil(units / per_machine))


def divided(fixed_s: Values, shared_s: Values, units: Values) -> Values:
    """Compute CT(k), or DT(k) without an all-reduce, of a serial part and of one that replicas divide."""
    return fixed_s + shared_s / units


def steady_time(compute_s: Values, data_s: Values, shared_s: Values) -> Values:
    """Compute ET of CT, DT and g."""
    return maximum(maximum(compute_s, data_s), shared_s)


def moving_time(data_s: Values, sync_s: Values, shared_s: Values) -> Values:
    """Compute DT' of what replicas move, an all-reduce and g."""
    return maximum(maximum(data_s, shared_s - sync_s), 0.0)


def micro_batch(alone: Alone, compute_s: Values, data_s: Values, units: Values, count: Values) -> Passes:
    """Compute the passes of one of M micro-batches on one of k replicas, of CT(k) and DT'(k)."""
    rounds = maximum(1.0, count / units)
    backward_s = (alone.backward_s + (rounds - 1) * alone.accumulate_s) / rounds
    own_s = alone.forward_s + backward_s
    share = where(own_s > 0, alone.forward_s / where(own_s > 0, own_s, 1.0), alone.usual)
    compute_s = units * compute_s / count + own_s - alone.whole_s / count
    return occupied(compute_s, (units * data_s + (count - 1) * alone.latency_s) / count + alone.rows_s, share)


def occupied(compute_s: Values, data_s: Values, share: Values) -> Passes:
    """Compute the passes of a micro-batch whose computation and data movement overlap."""
    busy_s = maximum(compute_s, data_s)
    return Passes(busy_s * share, busy_s * (1 - share), (busy_s - compute_s) * share)
