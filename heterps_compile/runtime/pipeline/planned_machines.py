"""How many replicas of a stage a plan has on each machine.

Left out: where ranks really are (``launch/machines_of_ranks.py``).
"""

from heterps_compile.plan.plan import Plan


def planned_sizes(plan: Plan, index: int, replicas: int) -> list[int]:
    """Return how many replicas of a stage a plan has on each machine: they fill one after the other."""
    names = {plan.stages[index].of_replica(replica)[0] for replica in range(plan.stages[index].replicas)}
    units = min((getattr(device, "units_per_machine", 1) for device in plan.devices if device.name in names), default=1)
    full, rest = divmod(replicas, units)
    return [units] * full + ([rest] if rest else [])
