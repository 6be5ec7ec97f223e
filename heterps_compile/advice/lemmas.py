"""The guidelines of Zou et al. (arXiv 1708.02983) for training on several GPUs, as formulas.

Legend: C the time of a batch that GPUs divide, O the time that each of them pays whole, R = O / C, G GPUs::

    speed-up     S(G) = (C + O) / (C / G + O)  =  G (1 + R) / (1 + G R)
    ceiling      S(inf)                        =  (1 + R) / R
    GPUs         G(S)                          =  S / (1 + R - S R)                      rounded up
    servers      N_ps                         >=  2 S_p N_w / (B_ps T_C)                 (``cost/provisioners.py``)

The first is Amdahl's law with the serial part R / (1 + R): O does not change with G, and one GPU pays it too. Left out
by it: that one GPU sums no gradients, that rings of more GPUs take longer, that batches do not divide evenly.
"""

import math

_SAME = 1e-12


def speed_up(gpus: float, overhead: float) -> float:
    """Return S of so many GPUs; ``overhead`` is R, inf where nothing is divided."""
    return 1.0 if math.isinf(overhead) else gpus * (1 + overhead) / (1 + gpus * overhead)


def ceiling(overhead: float) -> float:
    """Return what no number of GPUs reaches; inf where nothing is paid whole."""
    return 1 + 1 / overhead if overhead > 0 else math.inf


def gpus_for(wanted: float, overhead: float) -> int | None:
    """Return the fewest GPUs with a speed-up; None where it is at or above the ceiling."""
    rest = 1 - (wanted - 1) * overhead
    return None if rest <= _SAME * wanted else max(1, math.ceil(wanted / rest * (1 - _SAME)))
