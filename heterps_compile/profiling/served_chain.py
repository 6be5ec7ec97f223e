"""Passes over the layers of a model with its tables on parameter servers, and the rows that a pass looks up at hand.

A stage whose tables are served takes other times than one that holds them: it looks rows up among the few that were
pulled, and its backward makes gradients of those, where PyTorch makes that of a table as large as the table. So what a
run puts in the tables' places (``runtime/servers/served_table.py``) is put there while such a pass runs::

    pass    | rows of its look-ups are put together | F layer 0 | F layer 1 | ... | B layer 1 | B layer 0 |
              not timed                               each timed, as ``chain.py`` draws it

Left out: pulls and pushes, and what a table on servers takes beside the arithmetic on its rows, which plans have by
themselves (``cost/served_rows.py``); stages of runtimes whose tables no run serves.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .layer_passes import Passes

if TYPE_CHECKING:
    from torch import Tensor


class ServedPasses(Passes):
    """Passes over stages whose tables are served, of rows that are at hand.

    Attributes:
        looking_up: Numbers of the stages that have such tables.
    """

    def __init__(self, passes: Passes, tables: Sequence[str]) -> None:
        """Take stages of PyTorch over, with the names of tables that a run would serve."""
        from .rows_at_hand import RowsAtHand, TimedTable  # noqa: PLC0415 - torch only when something is run

        super().__init__(passes.graph, passes.partition, passes.stages, self._time_s, passes.autocast)
        stages: Sequence[Any] = passes.stages
        own = [{n: w for n, w in _named(stage) if n in tables} for stage in stages]
        weights = {name: weight for each in own for name, weight in each.items()}
        self.looking_up = tuple(index for index, each in enumerate(own) if each)
        self._clock, self._rows = passes.now, RowsAtHand(weights, passes.now)
        served = {
            id(weight): TimedTable(self._rows, number, weight.device) for number, weight in enumerate(weights.values())
        }
        self._places: list[tuple[dict[str, Any], str, Tensor, Tensor]] = [
            (module._parameters, key, weight, served[id(weight)])
            for index in self.looking_up
            for module in stages[index].modules()
            for key, weight in module._parameters.items()
            if id(weight) in served
        ]

    def infer(self, inputs: Mapping[str, Any]) -> None:
        """Run and time all forwards with the tables served."""
        with self._served(inputs):
            super().infer(inputs)

    def train(self, inputs: Mapping[str, Any], *, grads_at_hand: bool) -> None:
        """Run and time all forwards and backwards with the tables served."""
        with self._served(inputs):
            super().train(inputs, grads_at_hand=grads_at_hand)

    def row_gradients(self) -> "dict[str, list[tuple[Tensor, Tensor]]]":
        """Return by table the rows that the last pass looked up, as numbers, and their gradients."""
        return self._rows.gradients()

    def _time_s(self) -> float:
        return self._clock() - self._rows.stopped_s

    @contextmanager
    def _served(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Have served tables in place of the weights, which modules of the model may share with other stages."""
        self._rows.begin(inputs)
        for held, key, _, served in self._places:
            held[key] = served
        try:
            yield
        finally:
            for held, key, weight, _ in self._places:
                held[key] = weight
        self._rows.end()


def _named(stage: Any) -> "Iterator[tuple[str, Tensor]]":
    """Yield the parameters of a stage under all their names."""
    return iter(stage.named_parameters(remove_duplicate=False))
