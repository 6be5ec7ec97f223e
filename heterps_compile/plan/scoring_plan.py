"""The plan by which a folder scores: of one compiled for training, that of its stages in evaluation mode.

Left out: how these come about (``heterps_compile/scoring.py``).
"""

from dataclasses import replace

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

from .plan import Plan


def plan_for_scoring(plan: Plan) -> Plan:
    """Return a plan whose stages score; of one for inference itself.

    Raises:
        RunError: where a plan for training carries nothing to score with, saying why.
    """
    if plan.request.mode != "training":
        return plan
    scoring, shown = plan.scoring, printable(plan.model)
    if scoring is None:
        raise RunError(
            f"{shown!r} was compiled for training by an earlier version, without what scoring needs: dropout would "
            f"draw and batch norms would take the statistics of the micro-batch; compile it again"
        )
    if scoring.refused:
        raise RunError(f"{shown!r} was compiled for training and cannot score: {printable(scoring.refused)}")
    stages = tuple(
        replace(stage, inputs=inputs, outputs=outputs)
        for stage, (inputs, outputs) in zip(plan.stages, scoring.boundaries, strict=True)
    )
    return replace(
        plan,
        graph_inputs=scoring.graph_inputs,
        graph_outputs=scoring.graph_outputs,
        signature=scoring.signature,
        stages=stages,
        artifacts=scoring.artifacts,
        verification=scoring.verification or plan.verification,
    )
