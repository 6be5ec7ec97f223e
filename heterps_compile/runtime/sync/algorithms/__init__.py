"""The arithmetic of the rules on flat tensors, without a process group: one file is one published method.

Ranks that are simulated are a list of tensors.
"""
