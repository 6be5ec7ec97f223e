"""What a rule of synchronisation can be combined with, known before a run starts and without PyTorch.

Left out: the check of a run (``launch/sync_of_run.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a rule can.

    Attributes:
        steps_alone: Every rank steps on gradients of its own, so that their optimisers know other things.
        apart: Replicas differ between two times that they agree, which is not after every step.
        sums: What each rank steps on is a sum of parts of all gradients, so that several stages may share a tensor.
        takes_sparse: Gradients of some parameters may be sparse; these are summed, or belong to the rank where it
            steps alone.
        keeps_state: A rank has something of its own that a checkpoint keeps.
    """

    steps_alone: bool = False
    apart: bool = False
    sums: bool = False
    takes_sparse: bool = True
    keeps_state: bool = False


ALL_REDUCE = Capabilities(sums=True)
TOPK = Capabilities(sums=True, keeps_state=True)
POWERSGD = Capabilities(sums=True, keeps_state=True)
ADSAGA = Capabilities(sums=True, takes_sparse=False, keeps_state=True)
ADASUM = Capabilities(takes_sparse=False)
ADASUM_OF_STEPS = Capabilities(steps_alone=True, keeps_state=True)
LOCAL = Capabilities(steps_alone=True, apart=True, keeps_state=True)
SHADOW = Capabilities(steps_alone=True, apart=True, keeps_state=True)

BUILT_IN: Mapping[str, Capabilities] = MappingProxyType(
    {
        "all-reduce": ALL_REDUCE,
        "topk": TOPK,
        "adasum": ADASUM,
        "shadow": SHADOW,
        "local": LOCAL,
        "powersgd": POWERSGD,
        "adsaga": ADSAGA,
        "servers": ALL_REDUCE,
    }
)
"""Of the rules that run here, by name."""


def rule_of_tied(name: str, of_holders: Mapping[int, tuple[SyncRule, int]]) -> SyncRule:
    """Return the rule by which ranks agree on a tensor that several stages hold.

    Args:
        name: Of the tensor.
        of_holders: For every stage that holds it, its rule and its replicas.

    Raises:
        RunError: where the stages have different rules, or one that makes no sum of what they have.
    """
    if all(replicas == 1 for _, replicas in of_holders.values()):
        return USUAL
    both = f"stages {' and '.join(map(str, of_holders))} share the weight {printable(name)!r}"
    texts = list(dict.fromkeys(rule_text(rule) for rule, _ in of_holders.values()))
    if len(texts) > 1:
        raise RunError(f"{both}, and are to agree on it by {' and '.join(texts)}; give them one rule (--sync)")
    rule = next(rule for rule, _ in of_holders.values())
    if not capabilities_of(rule).sums:
        raise RunError(
            f"{both}, whose gradient is the sum of theirs, and {texts[0]} makes no sum; give these stages all-reduce "
            f"or topk (--sync)"
        )
    return rule


def capabilities_of(rule: SyncRule) -> Capabilities:
    """Return what a rule can; that of a third party is loaded for it.

    Raises:
        RunError: where nothing runs it.
        PlugInError: where a third party's does not load.
    """
    if isinstance(rule, Adasum) and rule.on == "step":
        return ADASUM_OF_STEPS
    if rule.name in BUILT_IN:
        return BUILT_IN[rule.name]
    from .find import find_runtime  # noqa: PLC0415 - PyTorch, which who starts a run does without

    return find_runtime(rule.name).can
