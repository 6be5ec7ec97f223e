"""What a plan was made from against what there is today: a plan of something else is refused, unless that is allowed.

The rule, for every command that reads a plan:

==================================  ==============================================================================
what is at hand                     what happens
==================================  ==============================================================================
the plan alone                      what follows from other numbers in the file is computed again (``consistency``)
the plan alone, which records it    its pool is the one of then, by value; that it is another one today is told
the plan and a pool that is named   the pool's hash must be the plan's
the plan, its pool and its model    every estimate is computed again; the hashes of model, pool, profile and options
                                    must be the plan's
==================================  ==============================================================================

Where a hash differs, that is an error which names it; ``--allow-stale`` goes on with today's numbers. To find out
whether a plan is stale is what ``check`` is for, which refuses none, and ``diff`` compares plans as they are.

Left out: posing the problem again (``pose.py``).
"""

from collections.abc import Sequence
from pathlib import Path

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import builtin_names, load_cluster
from heterps_compile.errors import InputError, StalePlanError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.provenance import hash_cluster
from heterps_compile.plan_diff.pool_changes import compare_pools, told_together

_NO_MATTER = frozenset({"weights"})  # no cost depends on what the weights are


def refuse_stale(changed: Sequence[str], *, allow_stale: bool) -> None:
    """Refuse a plan that was made from something else.

    Args:
        changed: Names of the hashes that are others today.
        allow_stale: Take it all the same.

    Raises:
        StalePlanError: naming them.
    """
    wrong = [name for name in changed if name not in _NO_MATTER]
    if wrong and not allow_stale:
        raise StalePlanError(
            f"the plan was made from something else: the hash of {' and '.join(wrong)} differs; name what "
            "it was made from, compile again, or take today's numbers all the same (--allow-stale)"
        )


def pool_of_today(plan: Plan, cluster: str | Path | None = None, *, allow_stale: bool = False) -> Cluster | None:
    """Return the pool of a plan; None where it neither records one, nor is it built in, nor is a file named.

    Args:
        plan: The plan.
        cluster: Name or file of its pool; None for the one that the plan recorded, else for the built-in one.
        allow_stale: Take a pool that is another one than the plan was made for.

    Raises:
        StalePlanError: where it is another one, and that is not allowed.
        InputError: where the pool cannot be read, or has not the device types of the plan.
    """
    if cluster is None and plan.pool is None and plan.cluster not in builtin_names():
        return None
    pool = plan.pool if cluster is None else None
    if pool is None:
        pool = load_cluster(plan.cluster if cluster is None else cluster)
    missing = sorted(
        {device for stage in plan.stages for device, _ in stage.units} - {device.name for device in pool.device_types}
    )
    if missing:
        raise InputError(
            f"the pool {pool.name!r} has no device type {missing[0]!r}, which the plan uses; name the plan's own pool "
            f"(--cluster FILE)"
        )
    refuse_stale(["cluster"] if is_other_pool(plan, pool) else [], allow_stale=allow_stale)
    return pool


def pool_of(plan: Plan) -> str | Cluster:
    """Return the name of a plan's pool where it is a built-in one; else the pool as the plan recorded it.

    Raises:
        InputError: where it is not built in, and the plan is of a version that records none.
    """
    if plan.cluster in builtin_names():
        return plan.cluster
    if plan.pool is None:
        raise InputError(
            f"the plan was made for the pool {plan.cluster!r}, which is not built in, and does not record it; name its "
            f"file (--cluster FILE)"
        )
    return plan.pool


def pool_has_moved_on(plan: Plan) -> str:
    """Say that the built-in pool of that name is another one today, and how where the plan recorded it; else ""."""
    if plan.cluster not in builtin_names():
        return ""
    today = load_cluster(plan.cluster)
    if not is_other_pool(plan, today):
        return ""
    told = "" if plan.pool is None else told_together(compare_pools(plan.pool, today), printable)
    way_out = f" (--cluster {plan.cluster} takes today's)"
    return (
        f"the pool {plan.cluster!r} is another one today: prices and times are those of then"
        f"{f'; {told}' if told else ''}{way_out if plan.pool is not None else ''}"
    )


def is_other_pool(plan: Plan, pool: Cluster) -> bool:
    """Whether a pool is another one than the plan was made for; what is not known is not another one."""
    return plan.hashes.get("cluster", "") not in ("", hash_cluster(pool))
