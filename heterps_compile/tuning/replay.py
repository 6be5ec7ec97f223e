"""Replay a journal: ask a new search the same questions, and tell it the same results, in their order.

Methods and assignment are functions of their seed and of the calls they got. So a new search asks for the same trials,
unless other versions or another model file made the journal.

Left out: the journal (``journal.py``), the next trial (``search_run.py``).
"""

from collections.abc import Sequence

from heterps_compile.errors import InfeasibleError, InputError

from .assignment import AssignedSearch
from .journal import Asked, Event, Failed, Nothing, Told
from .search_state import LEAST_S, SearchState


def replay(search: AssignedSearch, state: SearchState, events: Sequence[Event]) -> None:
    """Bring a new search to the end of a journal.

    Args:
        search: A search that was asked nothing yet.
        state: The state after all events.
        events: Of the journal.

    Raises:
        InputError: if the search asks for another trial now.
    """
    for event in events:
        if isinstance(event, Asked | Nothing):
            _ask_again(search, event)
        elif isinstance(event, Told | Failed):
            tell_result(search, state, event)


def tell_result(search: AssignedSearch, state: SearchState, event: Told | Failed) -> None:
    """Tell a search the result of a trial, and the time of the attempts that failed.

    Args:
        search: The search.
        state: A state after the event.
        event: The result; nothing is told of a trial that runs again.
    """
    trial = state.trials[event.trial]
    lost_s = sum(trial.failed_s)
    if isinstance(event, Told):
        search.tell(event.trial, state.record.loss_of(event.value), trial.time_s or LEAST_S, lost_s)
    elif event.is_left:
        search.tell_failed(event.trial, lost_s)


def _ask_again(search: AssignedSearch, event: Asked | Nothing) -> None:
    try:
        assigned = search.ask(event.class_name)
    except InfeasibleError:
        assigned = None
    now = None if assigned is None else (assigned.number, dict(assigned.config), assigned.part, assigned.continues)
    was = (event.trial, dict(event.config), event.part, event.continues) if isinstance(event, Asked) else None
    if now != was:
        asks = "no trial" if assigned is None else f"trial {assigned.number} of another configuration"
        has = f"trial {event.trial}" if isinstance(event, Asked) else "no trial"
        raise InputError(
            f"the search asks for {asks} where its journal has {has}. Fix: resume with the versions that search.json "
            "names and with the same files, or begin another search"
        )
