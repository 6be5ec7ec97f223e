"""The one logger of the package, ``heterps_compile``: silent until the program that uses the package adds a handler.

Levels, the same for all that is logged:

- WARNING: something on the disk was not as it was left, and was put right.
- INFO: what was compiled, written or loaded, once each; numbers that were chosen for free dimensions.
- DEBUG: every step of a compilation as it begins, and what was tidied up.

Notes of a plan and errors are given back to the caller, and are not logged as well. Names of files and models are
escaped.

Left out: the screen of a run (``runtime/telemetry``), which is on stderr unless ``run(quiet=True)``.
"""

import logging

LOG = logging.getLogger("heterps_compile")
LOG.addHandler(logging.NullHandler())

CHOSEN = "defaults: %s"
"""The message at level INFO on numbers that were chosen for free dimensions; commands without a table show it."""
