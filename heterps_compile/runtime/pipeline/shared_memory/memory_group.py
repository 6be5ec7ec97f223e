r"""Ranks of one machine that sum and share tensors through memory that all of them map.

Every rank copies its tensor into its own arena once, and reads those of the others where they are::

    rank 0   copy x0, post   ...   wait for x1 x2   (x0 + x1) + x2   empty the mailboxes of 1 and 2
    rank 1   copy x1, post   ...   wait for x0 x2   (x0 + x1) + x2   empty the mailboxes of 0 and 2
    rank 2   copy x2, post   ...   wait for x0 x1   (x0 + x1) + x2   empty the mailboxes of 0 and 1

So sums are in the order of ranks, with the same bits on all of them. A tensor of several chunks is posted as two of
them at first, and chunk c + 2 once this rank has read chunk c of all others: no rank holds more than two.

All members start their operations in the same order. The k-th one has two mailboxes of a pair, used again by the
operation after so many others; messages from rank to rank have mailboxes that follow each other alike::

    mailbox   | 0 1 | 2 3 | ... | 190 191 | 192 193 194 ... 254
    used by   | k=0 | k=1 | ... | k=95    | messages 0 1 2 ... 62

Left out: how ranks meet (``neighbours.py``), ranks of several machines (``rank_group.py``).
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heterps_compile.errors import RunError

from .mailboxes import Mailboxes
from .neighbours import Neighbours

CHUNK_BYTES = 1 << 24

_OPERATIONS, _MESSAGES = 96, 63  # with the word that says who sleeps, a table is one page

_Read = Callable[[int, int, list[Tensor]], None]
"""Takes the entries from one to another of all members, in the order of members."""


class MemoryGroup:
    """Some ranks of one machine.

    Attributes:
        ranks: Its members.
        under_way: Its operations that were started and not waited for.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        ranks: Sequence[int],
        *,
        peers: Sequence[int] = (),
        patience_s: float | None = None,
    ) -> None:
        """Join; waits for the other members.

        Args:
            neighbours: Of this rank, which is a member.
            ranks: Of the members.
            peers: Those that this rank exchanges messages with; empty for all.
            patience_s: After which a rank that waits gives up; None for that of the neighbours.
        """
        self.ranks, self._rank = tuple(ranks), neighbours.rank
        self._others = [rank for rank in peers or ranks if rank != self._rank]
        self._arena, self._memory_of = neighbours.arena, neighbours.memory_of
        tags = 2 * _OPERATIONS + _MESSAGES
        self._mailboxes = Mailboxes(neighbours, self._others, tags, patience_s=patience_s)
        self._is_later = self.ranks.index(self._rank) > 1
        self._started = 0
        self.under_way: deque[_Operation] = deque()
        self._sent, self._received = Counter[int](), Counter[int]()

    def sum(self, tensor: Tensor) -> "_Operation | _SparseSum":
        """Begin to sum a tensor in place; dense, or sparse with every row once."""
        return _SparseSum(self, tensor) if tensor.is_sparse else self._combine(tensor, torch.add)

    def maximum(self, tensor: Tensor) -> "_Operation":
        """Begin to take the largest of every element, in place."""
        return self._combine(tensor, torch.maximum)

    def gather(self, tensor: Tensor) -> tuple["_Operation", list[Tensor]]:
        """Begin to collect the members' tensors of one size, on the CPU, in the order of members."""
        received = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in self.ranks]

        def read(begin: int, end: int, parts: list[Tensor]) -> None:
            for into, part in zip(received, parts, strict=True):
                into.view(-1)[begin:end] = part

        return self.start(tensor.detach().reshape(-1), read), received

    def start_send(self, tensor: Tensor, target: int) -> "_Message":
        """Send a tensor of the CPU to a member; it may be changed at once."""
        self.post(tensor.detach().reshape(-1), 2 * (2 * _OPERATIONS + self._sent[target] % _MESSAGES), [target])
        self._sent[target] += 1
        return _Message(None)

    def start_receive(self, tensor: Tensor, source: int) -> "_Message":
        """Begin to receive a tensor of the CPU from a member, in place."""
        mailbox = self._next_mailbox(source)
        self._received[source] += 1

        def receive() -> None:
            part = self._part(source, mailbox, tensor.nbytes)
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
            self._mailboxes.inbox(source)[mailbox] = 0

        return _Message(receive)

    def take_any(self, sources: Sequence[int]) -> Tensor:
        """Wait for the next message of any of some members, the first of which are preferred; return its bytes.

        Raises:
            RunError: where one of them is gone.
        """
        source = self._mailboxes.wait_for({source: self._next_mailbox(source) for source in sources})
        mailbox = self._next_mailbox(source)
        self._received[source] += 1
        content = self._part(source, mailbox, None).clone()
        self._mailboxes.inbox(source)[mailbox] = 0
        return content

    def _next_mailbox(self, source: int) -> int:
        return 2 * (2 * _OPERATIONS + self._received[source] % _MESSAGES)

    def _combine(self, tensor: Tensor, function: Callable[..., Tensor]) -> "_Operation":
        plain = tensor.detach()
        flat = plain.reshape(-1).cpu()

        def read(begin: int, end: int, parts: list[Tensor]) -> None:
            first, *rest = parts
            into = flat[begin:end]
            for part in rest:
                function(first, part, out=into)
                first = into
            if end == flat.numel() and flat.data_ptr() != plain.data_ptr():
                plain.copy_(flat.view(plain.shape))

        return self.start(flat, read)

    def start(self, flat: Tensor, read: _Read, *, is_sized: bool = True) -> "_Operation":
        """Begin to share flat tensors, of one size or in one chunk; all members do it in the same order."""
        while self.under_way and self.under_way[0].number <= self._started - _OPERATIONS:
            self.under_way[0].wait()  # its mailboxes are needed again
        operation = _Operation(self, self._started, flat, read, is_sized=is_sized)
        self._started += 1
        self.under_way.append(operation)
        return operation

    def post(self, part: Tensor, mailbox: int, targets: Sequence[int] = ()) -> None:
        """Post a flat tensor to some members; to all others where none is named."""
        content, targets = part.view(torch.uint8), targets or self._others
        copy = self._arena.copy(content, [self._mailboxes.outbox(target) for target in targets], mailbox)
        for target in targets:
            self._mailboxes.post(target, mailbox, copy.place, content.numel())

    def is_posted(self, mailbox: int) -> bool:
        """Return whether all other members have posted their parts."""
        return all(self._mailboxes.inbox(other)[mailbox] for other in self._others)

    def read_parts(self, own: Tensor, mailbox: int, *, is_sized: bool) -> list[Tensor]:
        """Wait for the parts of all members, in their order; they stay until :meth:`free_parts`.

        Raises:
            RunError: where a member is gone, or sends another size.
        """
        size_bytes = own.nbytes if is_sized else None
        # the sum of the first two is written over the own part, which comes later in the order of others
        mine = own.clone() if self._is_later else own
        return [
            mine if rank == self._rank else self._part(rank, mailbox, size_bytes).view(own.dtype) for rank in self.ranks
        ]

    def free_parts(self, mailbox: int) -> None:
        """Let the other members write their parts again."""
        for other in self._others:
            self._mailboxes.inbox(other)[mailbox] = 0

    def _part(self, source: int, mailbox: int, size_bytes: int | None) -> Tensor:
        inbox = self._mailboxes.inbox(source)
        if not inbox[mailbox]:
            self._mailboxes.wait_for({source: mailbox})
        place, its_bytes = inbox[mailbox], inbox[mailbox + 1]
        if size_bytes is not None and its_bytes != size_bytes:
            raise RunError(
                f"rank {source} shares {its_bytes} bytes where {size_bytes} are due; do all ranks run the same version?"
            )
        return self._memory_of(source, place, its_bytes)


class _Operation:
    """Flat tensors of all members on their way, chunk by chunk.

    Attributes:
        number: Among the operations of the group.
    """

    def __init__(self, group: MemoryGroup, number: int, flat: Tensor, read: _Read, *, is_sized: bool) -> None:
        """Post the first two chunks."""
        self._group, self.number, self._flat, self._read, self._is_sized = group, number, flat, read, is_sized
        self._first_mailbox = 4 * (number % _OPERATIONS)
        length = flat.numel()
        size = max(CHUNK_BYTES // flat.element_size() if is_sized else length, 1)
        self._bounds = [(begin, min(begin + size, length)) for begin in range(0, max(length, 1), size)]
        self._is_over = False
        for chunk in range(min(2, len(self._bounds))):
            self._post(chunk)

    def is_completed(self) -> bool:
        """Return whether :meth:`wait` does not wait."""
        return self._is_over or (len(self._bounds) == 1 and self._group.is_posted(self._first_mailbox))

    def wait(self) -> None:
        """Wait for the tensors of all members, and read them.

        Raises:
            RunError: where a member is gone, or shares another size.
        """
        if self._is_over:
            return
        for chunk, (begin, end) in enumerate(self._bounds):
            mailbox = self._first_mailbox + 2 * (chunk % 2)
            self._read(begin, end, self._group.read_parts(self._flat[begin:end], mailbox, is_sized=self._is_sized))
            self._group.free_parts(mailbox)
            if chunk + 2 < len(self._bounds):
                self._post(chunk + 2)
        self._is_over = True
        self._group.under_way.remove(self)

    def _post(self, chunk: int) -> None:
        begin, end = self._bounds[chunk]
        self._group.post(self._flat[begin:end], self._first_mailbox + 2 * (chunk % 2))


class _SparseSum:
    """The sum of sparse tensors on its way: indices, then values, of which each member has its own number."""

    def __init__(self, group: MemoryGroup, tensor: Tensor) -> None:
        own = tensor.detach().coalesce()
        self._tensor, self._dense_shape = tensor, own.values().shape[1:]
        self._indices: list[Tensor] = []
        self._works = [
            group.start(own.indices().reshape(-1).cpu(), self._keep_indices, is_sized=False),
            group.start(own.values().reshape(-1).cpu(), self._add, is_sized=False),
        ]

    def _keep_indices(self, _begin: int, _end: int, parts: list[Tensor]) -> None:
        self._indices = [part.clone() for part in parts]

    def _add(self, _begin: int, _end: int, parts: list[Tensor]) -> None:
        depth, shape = self._tensor.sparse_dim(), self._tensor.shape
        first, *rest = (
            torch.sparse_coo_tensor(
                indices.view(depth, indices.numel() // depth),
                values.view(indices.numel() // depth, *self._dense_shape),
                shape,
                is_coalesced=True,
                check_invariants=False,
            )
            for indices, values in zip(self._indices, parts, strict=True)
        )
        for one in rest:
            first = first + one
        with torch.no_grad():
            self._tensor.copy_(first.coalesce())

    def is_completed(self) -> bool:
        """Return whether :meth:`wait` does not wait."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> None:
        """Wait for the tensors of all members, and sum them."""
        for work in self._works:
            work.wait()


@dataclass(slots=True)
class _Message:
    """A message from rank to rank.

    Attributes:
        finish: Called once by whoever waits for it.
    """

    finish: Callable[[], None] | None

    def wait(self) -> None:
        """Wait for it."""
        finish, self.finish = self.finish, None
        if finish is not None:
            finish()
