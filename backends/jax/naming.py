"""Words that a written jax stage has for itself.

Left out: names of values (``backends/local_names.py``), and of files, which are made of stage indices alone.
"""

MODULE_LEVEL = frozenset(
    {
        "params", "key", "stage", "step", "load", "Path", "INPUTS", "OUTPUTS", "KNOWN_INPUTS", "PARAMS", "WEIGHTS",
        "UPDATED", "DRAWS", "TIED_AS",
    }
)  # fmt: skip
