r"""``adsaga``: replicas sum what is new of a batch's gradient, and step on that and the mean of what they remember.

Glasgow and Wootters, "Asynchronous Distributed Optimization with Stochastic Delays", AISTATS 2022, arXiv 2009.10717.
The data are B batches, and the terms of the sum are these: step t has batch b(t), and replica r its part of the
gradient, g_r. Every replica keeps a table T_r of B gradients, all 0 at first, and all of them the mean m over batches
of the tables' sum::

    after the backward     h_r = g_r - T_r[b];   T_r[b] = g_r;   the sum of h_r over replicas begins
    every rank steps on    h + m,   h the sum that began ``delay`` steps before;   then m <- m + h / B

With one replica and no delay this is SAGA. In the first ``delay`` steps nothing has come yet, and gradients are 0. What
is on its way at a checkpoint is in it. The sum over replicas of tables is all that counts of them, so a run with other
replicas divides that evenly, as it does with what ``topk`` has not sent.

Left out: delays by chance, for which ranks would not go step by step;
sparse gradients; losses that are scaled, as a step that is skipped would be in the table.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.host_memory import available_bytes
from heterps_compile.sync_rules import adsaga
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.units import format_bytes

from .capabilities import ADSAGA, Capabilities
from .collective import Work
from .contract import MEAN, PENDING, TABLE, Flat, Rule, Shared, refuse_residuals


class Adsaga(Rule):
    """Sums what is new of gradients."""

    can: ClassVar[Capabilities] = ADSAGA

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        assert isinstance(asked, adsaga.Adsaga)  # noqa: S101 - of that name
        super().__init__(shared, asked)
        self._batches, self._delay = asked.batches, asked.delay
        self._batch = 0
        self._flats: list[Flat] = []
        self._tables: list[Tensor] = []
        self._means: list[Tensor] = []
        self._sent: list[deque[tuple[Work | None, Tensor]]] = []
        self._known: dict[str, Tensor] = {}

    def begin(self, step: int) -> None:
        """Learn which batch of the data comes."""
        self._batch = self.shared.batch_of(step, self._batches)

    def prepare(self, flats: Sequence[Flat]) -> None:
        """Make the tables, with what a checkpoint had of them.

        Raises:
            RunError: where there is no room for them, or the checkpoint's are of other batches.
        """
        self._refuse_short_memory(flats)
        self._flats = list(flats)
        for flat in flats:
            self._tables.append(self._of(flat, TABLE, self._batches))
            self._means.append(self._of(flat, MEAN, 1)[0])
            known = (self._known.get(f"{PENDING}:{name}") for name in flat.names)
            count = max((_rows(one) for one in known if one is not None), default=0)
            pending = self._of(flat, PENDING, count) if count else ()
            self._sent.append(deque((None, one) for one in pending))
        self._known = {}

    def _of(self, flat: Flat, kind: str, rows: int) -> Tensor:
        """Return [rows, entries] as gradients lie, zeros where nothing is known.

        Raises:
            RunError: where what is known has another number of rows.
        """
        made = torch.zeros(rows, flat.tensor.numel(), dtype=flat.tensor.dtype, device=flat.tensor.device)
        for name, part in zip(flat.names, torch.split(made, list(flat.sizes), dim=1), strict=True):
            known = self._known.get(f"{kind}:{name}")
            if known is not None and known.numel() != part.numel():
                raise RunError(
                    f"the checkpoint remembers {_rows(known):,} gradients of {printable(name)!r} in "
                    f"{self.shared.where}, and adsaga has {rows:,} batches; go on with as many, or begin with the "
                    f"checkpoint's weights (--weights) in another folder"
                )
            if known is not None:
                part.copy_(known.reshape(rows, -1))
        return made

    def _refuse_short_memory(self, flats: Sequence[Flat]) -> None:
        """Refuse tables for which there is no room, before they fill up step by step.

        Raises:
            RunError: with the numbers.
        """
        entries = sum(flat.tensor.numel() for flat in flats)
        size_bytes = sum(self._batches * flat.tensor.numel() * flat.tensor.element_size() for flat in flats)
        device = next((flat.tensor.device for flat in flats), torch.device("cpu"))
        here = 1 if device.type == "cuda" else self.shared.count_here
        free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
        if size_bytes * here <= free_bytes:
            return
        width = size_bytes // max(1, self._batches * entries)
        of_all = f", {format_bytes(size_bytes * here)} with the {here} replicas that are here" if here > 1 else ""
        raise RunError(
            f"{self.shared.where} is to agree by adsaga, with a table of {self._batches:,} x {entries:,} x {width} "
            f"bytes ({format_bytes(size_bytes)}{of_all}), and {format_bytes(free_bytes)} are free; give larger and "
            f"fewer batches (--batch, batches= of --sync), or take another rule (--sync)"
        )

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Remember the gradient, and begin to sum what is new of it."""
        for flat, table, sent in zip(flats, self._tables, self._sent, strict=True):
            new = flat.tensor - table[self._batch]
            table[self._batch] = flat.tensor
            sent.append((self.shared.group.sum(new), new))

    def finish(self) -> None:
        """Wait for what was sent so many steps before, and give the gradient that is stepped on."""
        for flat, mean, sent in zip(self._flats, self._means, self._sent, strict=True):
            flat.tensor.zero_()
            while len(sent) > self._delay:
                work, new = sent.popleft()
                if work is not None:
                    work.wait()
                flat.tensor.add_(new).add_(mean)
                mean.add_(new, alpha=1 / self._batches)

    def state(self) -> dict[str, Tensor]:
        """Return the table of this rank, and what all have alike: its mean, and what is on its way."""
        found = dict(self._known)
        for flat, table, mean, sent in zip(self._flats, self._tables, self._means, self._sent, strict=True):
            pending = []
            for place, (work, new) in enumerate(sent):
                if work is not None:
                    work.wait()
                    sent[place] = None, new
                pending.append(new)
            found |= {f"{MEAN}:{name}": part for name, part in flat.by_name(mean).items()}
            parts = zip(flat.names, torch.split(table, list(flat.sizes), dim=1), flat.shapes, strict=True)
            found |= {f"{TABLE}:{name}": part.reshape(self._batches, *shape) for name, part, shape in parts}
            rows = [flat.by_name(new) for new in pending]
            found |= {f"{PENDING}:{name}": torch.stack([row[name] for row in rows]) for name in flat.names if rows}
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take that back before the first step."""
        refuse_residuals(self.asked.name, self.shared.where, state)
        self._known = {key: tensor for key, tensor in state.items() if key.partition(":")[0] in (TABLE, MEAN, PENDING)}


def _rows(known: Tensor) -> int:
    return known.shape[0] if known.dim() else 1
