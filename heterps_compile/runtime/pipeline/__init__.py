"""Run one rank of a pipeline, and let ranks talk.

Ranks of one machine talk through memory that both map (``shared_memory/``), others over gloo (``over_gloo.py``), which
copies tensors of a GPU through the CPU's memory. Gradients, statistics and norms are summed over gloo as well
(``rank_group.py``). Nothing goes over NCCL.
"""
