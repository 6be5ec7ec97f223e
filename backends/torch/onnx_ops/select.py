"""Selection of boxes.

Left out: nothing; the loop over boxes runs on values, so that a written stage cannot have it.
"""

import torch
from torch import Tensor

from .table import op


@op("NonMaxSuppression", 10)
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    most: Tensor | None = None,
    overlap: Tensor | None = None,
    least_score: Tensor | None = None,
    *,
    center_point_box: int,
) -> Tensor:
    limit = 0 if most is None else int(most.item())
    allowed = 0.0 if overlap is None else float(overlap.item())
    kept = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], center_point_box)
        areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        for label in range(scores.shape[1]):
            values = scores[batch, label]
            order = torch.argsort(values, descending=True, stable=True).tolist()
            chosen: list[int] = []
            for box in order:
                if len(chosen) >= limit or (least_score is not None and values[box] <= least_score.reshape(())):
                    break
                others = corners[chosen]
                low = torch.maximum(others[:, :2], corners[box, :2])
                high = torch.minimum(others[:, 2:], corners[box, 2:])
                shared = (high - low).clamp(min=0).prod(1)
                if not bool((shared > allowed * (areas[chosen] + areas[box] - shared)).any()):
                    chosen.append(box)
            kept += [[batch, label, box] for box in chosen]
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _corners(boxes: Tensor, by_center: int) -> Tensor:
    if by_center:
        center, half = boxes[:, :2], boxes[:, 2:] / 2
        return torch.cat([center - half, center + half], 1)
    one, other = boxes[:, :2], boxes[:, 2:]
    return torch.cat([torch.minimum(one, other), torch.maximum(one, other)], 1)
