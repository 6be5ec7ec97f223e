"""What of a rule's time and memory adds up over layers, so that a search can price any stage with it.

With ring bytes R and gather bytes G, sums over the layers of a stage, and k replicas, u' of them in a machine, in m
machines (``network.py``), a step waits for the bytes of an exchange for ::

    2 (u' - 1) / u' R / inner bandwidth  where the rule sums inside machines
    2 (m - 1) / m R / card's bandwidth   where it sums between them
    G (m - 1) / card's bandwidth

and a replica holds H + J k bytes besides. None of these falls with k. A rule that halves (``adasum.py``) waits for
halves(k) R and products(k) G instead (``cost/halving.py``), and holds H, and J besides where k is no power of two.

Left out: messages (``SyncRule.exposed`` has them; they depend on k and the network alone, and on how many of three sums
of their own a stage has, W + P + Q, where a rule says so); rules of which this does not hold, which a search cannot
price.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a layer, or a stage, adds.

    Attributes:
        ring_bytes: R, a part of it where exchanges are some steps apart.
        gather_bytes: G, likewise.
        held_bytes: H.
        replica_bytes: J.
        sums_inside, sums_between: Whether R is summed inside machines, and between them.
        halves: Whether R and G go by recursive halving.
        is_factored: Whether what is summed are two factors of it, in a sum each, beside what is summed whole.
        is_whole: Whether something of it is summed whole; looked at where anything is factored.
    """

    ring_bytes: float = 0.0
    gather_bytes: float = 0.0
    held_bytes: float = 0.0
    replica_bytes: float = 0.0
    sums_inside: bool = True
    sums_between: bool = True
    halves: bool = False
    is_factored: bool = False
    is_whole: bool = True
