"""How a run starts the table servers of a plan, in words.

Left out: what replicas synchronise through servers (``plan.py``).
"""

from heterps_compile.cost.memory import SERVER_OPTIMIZERS
from heterps_compile.escape import for_markdown

from .plan import Plan, tables_in_words


def server_options_of(plan: Plan) -> str:
    """Write the options that start the table servers of a plan; "" without any.

    The rule that steps rows is named where the plan's optimiser is one that servers have.
    """
    if plan.tables is None:
        return ""
    optimizer = plan.request.optimizer
    rule = f" --server-optimizer {optimizer}" if optimizer in SERVER_OPTIMIZERS else ""
    return f"--parameter-servers {plan.tables.servers}{rule}"


def how_to_run_tables(plan: Plan) -> str:
    """Say how a run serves the tables of a plan; "" without any."""
    if plan.tables is None:
        return ""
    if plan.request.mode != "training":
        return "runs serve tables in training alone, so that this plan is not run"
    return f"a run starts its servers with {server_options_of(plan)}"


def tables_in_markdown(plan: Plan) -> list[str]:
    """Write the paragraph of a README about tables on servers."""
    if plan.tables is None:
        return []
    return ["", f"On servers: {for_markdown(tables_in_words(plan))}; {for_markdown(how_to_run_tables(plan))}."]
