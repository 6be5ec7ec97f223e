"""The passes of a compilation, in order.

Left out: what a pass is and how passes are wired (``contract.py``).
"""

from .annotate_intensity import AnnotateIntensity
from .choose_schedule import ChooseSchedule
from .contract import Pass, run_passes, steps_of
from .drafts import D, Draft
from .emit_stages import EmitStages
from .fuse_stages import FuseStages
from .group_layers import GroupLayers
from .place_layers import PlaceLayers
from .pose_problem import PoseProblem
from .provision import Provision

DEFAULT: tuple[Pass, ...] = (
    GroupLayers(),
    AnnotateIntensity(),
    PoseProblem(),
    PlaceLayers(),
    FuseStages(),
    Provision(),
    ChooseSchedule(),
    EmitStages(),
)
"""The passes that make a plan, from the graph to the stages."""


def run_to(draft: Draft, wanted: type[D]) -> D:
    """Run the default passes from where a draft is to the step that is wanted.

    Raises:
        HeterpsError: where none of them gives it.
    """
    if isinstance(draft, wanted):
        return draft
    left = [step for step in DEFAULT if not issubclass(type(draft), steps_of(step)[1])]
    ends = [index for index, step in enumerate(left, 1) if issubclass(steps_of(step)[1], wanted)]
    return run_passes(draft, left[: ends[0]] if ends else left, wanted)
