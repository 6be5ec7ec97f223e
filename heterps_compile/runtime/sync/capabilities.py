"""What a rule of synchronisation can be combined with.

Left out: which rule has which (``find.py``), the check of a run (``launch/combinations.py``).
"""

from dataclasses import dataclass


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
