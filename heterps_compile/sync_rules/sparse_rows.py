"""What a rule moves and takes together with the sparse gradients of a stage, which are no affair of the rule.

Rules are of dense gradients, in flat buffers. Beside them a run sums sparse ones
(``runtime/pipeline/gradient_sums.py``): each of k replicas puts the rows that it looked up in order, each once, and
sends them with their indices to the k - 1 others, who add all of them up. With r rows of b bytes over all replicas
each sends ::

    (k - 1) min(r / k, rows of the table) b

of which times and searches take what adds up over layers, a ring's 2 (k - 1) / k S with S = min(r / 2, rows of the
table) b: the same where no replica looks up more rows than the table has, and always with two. For small tables it is
at most k / 2 times too little. A rule that gathers between machines (``Amounts.sums_between``) has S in what it
gathers, (m - 1) S of m machines, which is too much where there are more than two.

Where replicas step alone each keeps its rows; rules that combine dense gradients alone refuse sparse ones.

Left out: messages beside those of the rule, three gatherings for each table; replicas that share a machine, whose rows
a run sends in one ring over all; what a replica holds of the others' rows while they are added up.
"""

from dataclasses import replace

from .amounts import Amounts
from .handling import Handling, Work
from .rule import OWN, REFUSED, SUMMED, Exposed, FlatBuffer, SyncGroup, SyncRule

_OWN_PASSES = 18.0
_SUM_PASSES, _PASSES_OF_EACH = 38.0, 4.4
# Bytes that are read or written for one of the rows of a batch: of two replicas each finds the order of its half and
# writes every row once; all rows are put in one piece, ordered and added, and copied once more for every other replica.
# The time of it over that of a copy, which is 2: tools/bench_gradients.py


def refusal(rule: SyncRule, group: SyncGroup) -> str:
    """Return why a group cannot have a rule; "" where it can."""
    if group.sparse and group.replicas > 1 and rule.of_sparse == REFUSED:
        return "it combines dense gradients, and look-ups with sparse=True make sparse ones; leave sparse=True out"
    return rule.refusal(group)


def exposed(rule: SyncRule, group: SyncGroup) -> Exposed:
    """Return what a step waits for after its last backward."""
    found, size_bytes = rule.exposed(group), _ring_bytes(rule, group)
    if not size_bytes or group.replicas < 2:
        return found
    network, own = group.network, rule.amounts(group)
    if own is not None and not own.sums_between:
        between_s = (group.machines - 1) * size_bytes * network.seconds_per_byte
        bytes_s = network.inside_s(size_bytes, group.replicas) + between_s
    else:
        bytes_s = network.sums_s(size_bytes, group.replicas)
    something = (FlatBuffer(1),)
    alone = rule.exposed(SyncGroup(group.replicas, something, something, network=network))
    return Exposed(found.bytes_s + bytes_s, max(found.hops_s, alone.hops_s))


def sent_bytes_a_step(rule: SyncRule, group: SyncGroup) -> float:
    """Return what one replica sends in a step, in the mean over replicas and steps."""
    k, sent_bytes = group.replicas, rule.sent_bytes_a_step(group)
    if k < 2 or rule.of_sparse != SUMMED:
        return sent_bytes
    return sent_bytes + (k - 1) * sum(min(each.rows / k, each.table_rows) * each.row_bytes for each in group.sparse)


def amounts(rule: SyncRule, group: SyncGroup) -> Amounts | None:
    """Return what a group adds, whatever its replicas; None where that does not follow."""
    found, size_bytes = rule.amounts(group), _ring_bytes(rule, group)
    if found is None or not size_bytes:
        return found
    gather_bytes = found.gather_bytes + (0.0 if found.sums_between else size_bytes)
    return replace(found, ring_bytes=found.ring_bytes + size_bytes, gather_bytes=gather_bytes)


def handling(rule: SyncRule, group: SyncGroup) -> Handling:
    """Return what it has the processor of a replica do in a step, whatever the replicas."""
    found = rule.handling(group)
    size_bytes = sum(each.rows * each.row_bytes for each in group.sparse)
    if not size_bytes:
        return found
    if rule.of_sparse == OWN:
        return replace(found, once=found.once + Work(moved=_OWN_PASSES * size_bytes))
    return replace(
        found,
        once=found.once + Work(moved=_SUM_PASSES * size_bytes),
        each=found.each + Work(moved=_PASSES_OF_EACH * size_bytes),
    )


def _ring_bytes(rule: SyncRule, group: SyncGroup) -> float:
    if rule.of_sparse != SUMMED:
        return 0.0
    return sum(min(each.rows / 2, each.table_rows) * each.row_bytes for each in group.sparse)
