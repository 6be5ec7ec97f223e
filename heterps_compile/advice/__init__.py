"""The command ``advise``: how many GPUs, parameter servers and samples a batch, by published lemmas."""

from .advise import Advice, advise

__all__ = ["Advice", "advise"]
