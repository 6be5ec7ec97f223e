"""A search as its journal left it: the same questions asked again, and the same answers told, in their order.

Methods and assignment are functions of their seed and of the calls they got. So what was asked before comes out again,
and what comes out otherwise was made by other versions or another model file.

Left out: the journal itself, and what runs next (``search_run.py``).
"""

from collections.abc import Sequence

from heterps_compile.errors import InfeasibleError, InputError

from .assignment import Assigned, AssignedSearch
from .journal import Asked, Event, Failed, Nothing, Told
from .search_record import SearchRecord


def replay(search: AssignedSearch, record: SearchRecord, events: Sequence[Event]) -> dict[int, Assigned]:
    """Bring a new search to where a journal left it; return the trials that are still to end, by number.

    Raises:
        InputError: where the search asks otherwise now.
    """
    lost_s: dict[int, float] = {}
    for event in events:
        match event:
            case Asked():
                _check_same(search.ask(event.class_name), event)
            case Nothing():
                _ask_in_vain(search, event)
            case Told():
                loss = record.loss_of(event.value)
                search.tell(event.trial, loss, event.time_s, lost_s.pop(event.trial, 0.0))
            case Failed():
                lost_s[event.trial] = lost_s.get(event.trial, 0.0) + event.time_s
                if event.is_left:
                    search.tell_failed(event.trial, lost_s.pop(event.trial))
            case _:
                pass
    return dict(search.open)


def _check_same(assigned: Assigned | None, event: Asked) -> None:
    now = None if assigned is None else (assigned.number, dict(assigned.config), assigned.part, assigned.continues)
    if now != (event.trial, dict(event.config), event.part, event.continues):
        raise InputError(
            f"the search does not ask for trial {event.trial} of its journal any more; go on with the versions that "
            "search.json names and with the same files, or begin another search"
        )


def _ask_in_vain(search: AssignedSearch, event: Nothing) -> None:
    try:
        assigned = search.ask(event.class_name)
    except InfeasibleError:
        return
    if assigned is not None:
        raise InputError(
            f"the search has trial {assigned.number} for class {event.class_name!r} where its journal has none; go on "
            "with the versions that search.json names and with the same files, or begin another search"
        )
