"""What a synchronisation rule is: a name, options as fields, and what it moves, takes and holds as pure functions.

A rule is a frozen dataclass; its fields are its options, and their types say how they are written
(``rule_text.py``). What it moves is counted over one *exchange*, in which every replica of a stage takes part: the
runtime counts the same, so that predicted and counted bytes can be held against each other to the byte.

Left out: the exchange itself (``runtime/sync/``), and which stage has which rule (``assignment.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from .amounts import Amounts
from .handling import Handling, flat_gradients
from .network import Network

Exactness = Literal["exact", "bounded", "any"]
EXACT: Final = "exact"
BOUNDED: Final = "bounded"
ANY: Final = "any"
EXACTNESSES = (EXACT, BOUNDED, ANY)
"""What a rule keeps of training in one process, the most first.

exact: every step is that of one process, but for the order of sums. bounded: what a step leaves out is kept and comes
with a later one, or replicas are apart for a number of steps that is set. any: neither.
"""


def allowed_classes(most: str) -> tuple[str, ...]:
    """Return the classes that a limit allows: itself and all that keep more."""
    return EXACTNESSES[: EXACTNESSES.index(most) + 1]


_NOWHERE = Network(0.0)


@dataclass(frozen=True, slots=True)
class FlatBuffer:
    """Tensors of one dtype that lie one after the other.

    Attributes:
        elements: Of all of them together.
        element_bytes: Of one.
    """

    elements: int
    element_bytes: int = 4

    @property
    def size_bytes(self) -> int:
        """Return its bytes."""
        return self.elements * self.element_bytes


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor by its form.

    Attributes:
        shape: Its dimensions.
        element_bytes: Of one entry.
    """

    shape: tuple[int, ...]
    element_bytes: int = 4


@dataclass(frozen=True, slots=True)
class SparseRows:
    """The gradient of a table of which look-ups make rows alone.

    Attributes:
        rows: That all replicas look up for a batch, each as often as it is.
        row_bytes: Of one, with its index.
        table_rows: Of the table.
    """

    rows: int
    row_bytes: int
    table_rows: int


SUMMED, OWN, REFUSED = "summed", "own", "refused"
"""What becomes of sparse gradients by a rule: all replicas sum them, each steps on its own, or there may be none."""


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """The replicas of a stage, and what they agree on.

    Attributes:
        replicas: k.
        gradients: What a step makes, all elements of it: dense gradients, and rows of tables that servers step.
        parameters: What replicas hold copies of, embeddings whole.
        tensors: Parameters, counted.
        network: Between the replicas.
        shapes: Of the parameters whose gradients are dense; empty where nobody knows them.
        sparse: Gradients of rows alone, which rules do not see (``sparse_rows.py``).
    """

    replicas: int
    gradients: tuple[FlatBuffer, ...]
    parameters: tuple[FlatBuffer, ...]
    tensors: int = 1
    network: Network = _NOWHERE
    shapes: tuple[TensorShape, ...] = ()
    sparse: tuple[SparseRows, ...] = ()

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of a replica's gradients, but for sparse ones."""
        return sum(buffer.size_bytes for buffer in self.gradients)

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes of a replica's parameters."""
        return sum(buffer.size_bytes for buffer in self.parameters)

    @property
    def inside(self) -> int:
        """Return u', the replicas that share a machine."""
        return self.network.inside(self.replicas)

    @property
    def machines(self) -> int:
        """Return m, the machines."""
        return self.network.machines(self.replicas)

    @property
    def agrees(self) -> bool:
        """Return whether there is anything to agree on."""
        return self.replicas > 1 and (self.gradient_bytes > 0 or bool(self.sparse))


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one exchange moves and takes.

    Attributes:
        sent_bytes: Of all replicas together, each byte once: what they send, which is what they receive.
        card_bytes: What the card of the busiest machine sends.
        bytes_s: What its bytes take, the replicas beside each other.
        hops_s: What its messages take besides, one after the other.
    """

    sent_bytes: int = 0
    card_bytes: float = 0.0
    bytes_s: float = 0.0
    hops_s: float = 0.0

    @property
    def time_s(self) -> float:
        """Return what it takes."""
        return self.bytes_s + self.hops_s


NOTHING = Exchange()


@dataclass(frozen=True, slots=True)
class Exposed:
    """What a step waits for after its last backward, in the mean over steps.

    Attributes:
        bytes_s: For the bytes.
        hops_s: For the messages besides.
    """

    bytes_s: float = 0.0
    hops_s: float = 0.0

    @property
    def time_s(self) -> float:
        """Return both together."""
        return self.bytes_s + self.hops_s


class SyncRule(ABC):
    """A rule by which the replicas of a stage agree.

    Attributes:
        name: As in ``--sync``.
        example: The rule with its options, for messages.
        source: Where it is published; "" for what is common knowledge.
    """

    __slots__ = ()

    name: ClassVar[str]
    example: ClassVar[str]
    source: ClassVar[str] = ""

    @property
    @abstractmethod
    def exactness(self) -> Exactness:
        """Return its class."""

    @property
    def uses_servers(self) -> bool:
        """Return whether it needs parameter servers, which have a price; by default it does not."""
        return False

    @property
    def is_of_whole_models(self) -> bool:
        """Return whether it is the rule of all stages or of none; by default stages may differ."""
        return False

    @property
    def never_planned(self) -> str:
        """Return why no plan can have this rule, whatever its stages are; "" where one can."""
        return ""

    @property
    def uncounted(self) -> str:
        """Return, in words, what times leave out of its work that may be as long as what they count; "" by default."""
        return ""

    @property
    def of_sparse(self) -> str:
        """Return what becomes of sparse gradients: :data:`SUMMED`, :data:`OWN` or :data:`REFUSED`."""
        return SUMMED

    @property
    def period_steps(self) -> int:
        """Return the steps from one exchange to the next."""
        return 1

    @abstractmethod
    def exchange(self, group: SyncGroup) -> Exchange:
        """Return what one exchange moves and takes; nothing where there is nothing to agree on."""

    def exposed(self, group: SyncGroup) -> Exposed:
        """Return what a step waits for after its last backward; by default for the whole exchange."""
        found = self.exchange(group)
        return Exposed(found.bytes_s / self.period_steps, found.hops_s / self.period_steps)

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return what a replica holds besides weights, gradients and states of the optimizer; by default nothing."""
        return 0 * group.replicas

    def sent_bytes_a_step(self, group: SyncGroup) -> float:
        """Return what one replica sends in a step, in the mean over replicas and steps; it receives as much."""
        return self.exchange(group).sent_bytes / (self.period_steps * max(1, group.replicas))

    def amounts(self, group: SyncGroup) -> Amounts | None:
        """Return what a group adds, whatever its replicas, so that :meth:`exposed` and :meth:`extra_bytes` follow.

        None, by default, where they do not: no search knows then what placements come to with the rule, and nothing is
        proven of them. A rule that inherits another one's times and changes them has to have its own.
        """
        del group
        return None

    def handling(self, group: SyncGroup) -> Handling:
        """Return what it has the processor of a replica do in a step, whatever the replicas; all rules have buffers."""
        return Handling(once=flat_gradients(group.gradient_bytes))

    def refusal(self, group: SyncGroup) -> str:
        """Return why a group cannot have this rule; "" where it can."""
        return "" * group.replicas


def left_uncounted(rules: Iterable[SyncRule]) -> list[str]:
    """Return what the times of some rules leave out, in words, each once and in the rules' order."""
    return list(dict.fromkeys(rule.uncounted for rule in rules if rule.uncounted))
