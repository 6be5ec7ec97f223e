"""Run one rank of a pipeline, and let ranks talk.

Ranks of one machine talk and sum through memory that all of them map (``shared_memory/``), others over gloo
(``over_gloo.py``, ``rank_group.py``); tensors of a GPU are copied through the CPU's memory. ``world.py`` knows which
ranks are where. Nothing goes over NCCL.
"""
