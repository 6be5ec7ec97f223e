"""What became of single layers from one plan to another, in a few words each, for pictures.

Left out: the whole in sentences (``diff_words.py``).
"""

from heterps_compile.plan.diff import PlanDiff


def words_of_new_layers(changes: PlanDiff) -> dict[str, str]:
    """Return the layers of the new plan that are different in the old one, by name."""
    return {
        **{change.layer: f"was in stage {change.old_stage}" for change in changes.regrouped},
        **dict.fromkeys(changes.altered, "another computation"),
        **{change.layer: f"was on {change.old_device}" for change in changes.moved},
        **{layer.layer: "new" for layer in changes.added},
    }


def words_of_old_layers(changes: PlanDiff) -> dict[str, str]:
    """Return the layers of the old plan that are different in the new one, by name."""
    return {
        **{change.old_name: f"went to stage {change.new_stage}" for change in changes.regrouped},
        **{change.old_name: f"moved to {change.new_device}" for change in changes.moved},
        **{layer.layer: "gone" for layer in changes.removed},
    }
