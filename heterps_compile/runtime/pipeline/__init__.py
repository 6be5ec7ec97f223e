"""Run one rank of a pipeline, and let ranks talk.

Ranks of one machine talk and sum through memory that all of them map (``shared_memory/``), others over gloo
(``over_gloo.py``, ``rank_group.py``). Tensors of GPUs go over NCCL between ranks with a GPU each (``between_gpus.py``),
and are copied through the CPU's memory otherwise. ``world.py`` knows which ranks are where.
"""
