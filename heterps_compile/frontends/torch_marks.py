"""Marks on what is traced: which node of ours a node of PyTorch's comes from.

Left out: releases of PyTorch that keep no marks; there are none then.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.fx.traceback as fx_traceback
from torch import fx


def mark_traced(key: str, mark: str) -> AbstractContextManager[Any]:
    """Mark the nodes that are traced inside, where PyTorch is new enough to keep marks."""
    annotate: Any = getattr(fx_traceback, "annotate", None)
    context: AbstractContextManager[Any] = nullcontext() if annotate is None else annotate({key: mark})
    return context


def marks_kept() -> AbstractContextManager[Any]:
    """Return the context of a ``torch.export`` that keeps marks."""
    keep: Any = getattr(fx_traceback, "preserve_node_meta", None)
    context: AbstractContextManager[Any] = nullcontext() if keep is None else keep()
    return context


def mark_of(node: fx.Node, key: str) -> str | None:
    """Return the mark of a traced node."""
    mark: str | None = (node.meta.get("custom") or {}).get(key)
    return mark
