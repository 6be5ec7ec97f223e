"""What a plan's tables on servers are, in words.

Left out: what replicas synchronise through servers (``plan.py``).
"""

from heterps_compile.cost.memory import SERVER_OPTIMIZERS
from heterps_compile.escape import printable
from heterps_compile.units import counted, format_bytes, format_money, format_seconds

from .plan import Plan

_NAMED = 3


def tables_in_words(plan: Plan) -> str:
    """Say which tables lie on servers, on how many, what they hold, move and cost; "" where none does."""
    tables = plan.tables
    if tables is None:
        return ""
    named = ", ".join(map(printable, tables.names[:_NAMED]))
    more = f" and {len(tables.names) - _NAMED} more" if len(tables.names) > _NAMED else ""
    states = f" with the states of {plan.request.optimizer}" if plan.request.mode == "training" else ""
    return (
        f"{counted(len(tables.names), 'table')} ({named}{more}), {format_bytes(tables.size_bytes)}{states}, on "
        f"{counted(tables.servers, 'server')}: {format_bytes(tables.size_bytes / tables.servers)} on each, "
        f"{format_bytes(tables.moved_bytes)} moved for a batch in {format_seconds(tables.batch_s)}, "
        f"{format_money(tables.price_per_hour)} {plan.currency}/h"
    )


def server_options_of(plan: Plan) -> str:
    """Return the options with which a run starts the servers of a plan; "" where no table lies on one.

    The rule that steps rows is named where the plan's optimiser is one that servers have.
    """
    if plan.tables is None:
        return ""
    optimizer = plan.request.optimizer
    rule = f" --server-optimizer {optimizer}" if optimizer in SERVER_OPTIMIZERS else ""
    return f"--parameter-servers {plan.tables.servers}{rule}"


def how_to_run_tables(plan: Plan) -> str:
    """Say how a run serves the tables that the plan has on servers, or that it does not; "" where there are none."""
    if plan.tables is None:
        return ""
    if plan.request.mode != "training":
        return "runs serve tables in training alone, so that this plan is not run"
    return f"a run starts its servers with {server_options_of(plan)}"
