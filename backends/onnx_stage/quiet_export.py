"""PyTorch's ONNX exporter without what it logs and warns of to its own developers."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_export() -> Iterator[None]:
    """Keep the exporter from logging of packages it misses, and from warning of what it does itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
