"""One stage of a plan: its layers, the hardware it was given, and what it takes.

The replicas of a stage may be of several device types. Each type takes a part of every batch, in proportion to its
speed, and ranks are numbered type by type::

    2 x fast + 1 x slow, a micro-batch in 1 s and in 2 s       ranks 0 and 1 fast, rank 2 slow
    of 5 micro-batches                                        0 1 0 1 2: 2, 2 and 1

Left out: how micro-batches are dealt (``schedule/mixed_stage.py``).
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from heterps_compile.cost.memory import MemoryParts
from heterps_compile.cost.served_rows import ServedRows
from heterps_compile.schedule.micro_batch import MicroBatch, micro_batch_of
from heterps_compile.units import format_bytes


@dataclass(frozen=True, slots=True)
class StageSync:
    """A rule of a stage.

    Attributes:
        rule: As text, with its options.
        exactness: Its class: ``exact``, ``bounded`` or ``any``.
        step_bytes: What a replica sends in a step, in the mean over replicas and steps; it receives as much.
        all_reduce_bytes: What it would send with an all-reduce.
        all_reduce_s: What an all-reduce would take after the last backward of the stage.
    """

    rule: str
    exactness: str
    step_bytes: float
    all_reduce_bytes: float
    all_reduce_s: float


@dataclass(frozen=True, slots=True)
class TypeReplicas:
    """The replicas of one device type, in a stage that has several.

    Attributes:
        device: Name of the device type.
        kind: ``"cpu"``, ``"gpu"`` or ``"npu"``.
        replicas: Units.
        share: Part of every batch that they work on together, in the steady state.
        compute_s, data_s: CT and DT of that part, the all-reduce included.
        price_per_hour: Of all of them.
        times: As those of a stage, of one of them.
    """

    device: str
    kind: str
    replicas: int
    share: float
    compute_s: float
    data_s: float
    price_per_hour: float
    times: tuple[MicroBatch, ...] = ()

    def micro_batch(self, count: int) -> MicroBatch:
        """Read off the times of one of several micro-batches on one unit."""
        return micro_batch_of(self.times, count)


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage with the hardware it was given.

    Attributes:
        index: Place in the order of execution.
        device: Name of its device type; where it has several, of the one that takes the largest part of a batch.
        kind: Of that device: ``"cpu"``, ``"gpu"`` or ``"npu"``.
        layers: Names of its layers, in order.
        inputs: Names of the values that enter it, in the order its artefact takes them.
        outputs: Names of the values it gives, in order.
        backend: Name of the backend that runs it; "" until emitted.
        replicas: Units, of all its device types together; 0 until provisioned.
        compute_s: CT of a batch with that many replicas; of several device types the longest.
        data_s: DT of a batch with that many replicas; likewise.
        sync_s: What the bytes of the all-reduce of their gradients take, once a step; a part of ``data_s``.
        sync_hops_s: What its messages take besides, one after the other; in the step, and not in ``data_s``.
        handling_s: What the rule by which they agree takes each of them besides, once a step; in the step alone.
        update_s: What the optimizer's step takes each of them; likewise. 0 in plans of older versions.
        received_bytes: Bytes of a batch that enter from other stages.
        sent_bytes: Bytes of a batch that leave for other stages.
        times: Of one micro-batch on one replica, for some counts of micro-batches, ascending; the mean over all
            replicas where these differ. Other counts lie on straight lines between them
            (``schedule/micro_batch.py``). Empty where they are not known, as in plans of older versions.
        recompute: Whether it keeps what enters it and computes its activations again in the backward (training).
        memory: What one replica holds.
        price_per_hour: Of all its replicas.
        mixed: Its replicas by device type where it has several, ``device`` first; else empty.
        sync: The rule by which its replicas agree, where that is another than all-reduce; ``sync_s`` and
            ``sync_hops_s`` are then what a step waits for by it.
        rows: Of its tables on servers; None where it has none, and where that is not known.
    """

    index: int
    device: str
    layers: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    kind: str = "cpu"
    backend: str = ""
    replicas: int = 0
    compute_s: float = 0.0
    data_s: float = 0.0
    sync_s: float = 0.0
    sync_hops_s: float = 0.0
    handling_s: float = 0.0
    update_s: float = 0.0
    received_bytes: int = 0
    sent_bytes: int = 0
    times: tuple[MicroBatch, ...] = ()
    recompute: bool = False
    memory: MemoryParts | None = None
    price_per_hour: float = 0.0
    mixed: tuple[TypeReplicas, ...] = ()
    sync: StageSync | None = None
    rows: ServedRows | None = None

    @property
    def units(self) -> tuple[tuple[str, int], ...]:
        """Return its device types, each with its replicas."""
        return tuple((each.device, each.replicas) for each in self.mixed) or ((self.device, self.replicas),)

    @property
    def by_type(self) -> "tuple[PlannedStage, ...]":
        """Return the stage once for every device type, each with the time that it alone takes for whole batches."""
        if not self.mixed:
            return (self,)
        return tuple(
            replace(
                self,
                device=each.device,
                kind=each.kind,
                replicas=each.replicas,
                compute_s=each.compute_s / each.share,
                data_s=(each.data_s - self.sync_s) / each.share + self.sync_s,
                price_per_hour=each.price_per_hour,
                times=each.times,
                mixed=(),
            )
            for each in self.mixed
        )

    def micro_batch(self, count: int) -> MicroBatch:
        """Read off the times of one of several micro-batches on one replica."""
        return micro_batch_of(self.times, count)

    @property
    def device_words(self) -> str:
        """Name its device types: ``"v100"``, ``"v100 + cpu-core"``."""
        return " + ".join(device for device, _ in self.units)

    @property
    def replicas_words(self) -> str:
        """Say how many replicas it has of each type: ``"3"``, ``"1 + 2"``."""
        return " + ".join(str(count) for _, count in self.units)

    @property
    def hardware(self) -> str:
        """Say what it runs on: ``"3 x v100"``, ``"1 x v100 + 2 x cpu-core"``."""
        return " + ".join(f"{count} x {device}" for device, count in self.units)

    @property
    def of_replicas(self) -> tuple[TypeReplicas, ...]:
        """Return what every replica is, in the order of their ranks; empty where all are of ``device``."""
        return tuple(each for each in self.mixed for _ in range(each.replicas))

    def of_replica(self, replica: int) -> tuple[str, str]:
        """Return device type and kind of a replica; those of the stage for one more than planned."""
        each = self.of_replicas[replica : replica + 1]
        return (each[0].device, each[0].kind) if each else (self.device, self.kind)

    @property
    def time_s(self) -> float:
        """Return ET, the time of a batch: computation and data movement overlap, so the longer of the two."""
        return max(self.compute_s, self.data_s)

    @property
    def memory_words(self) -> str:
        """Say what one replica holds, and that it computes its activations again; "" where that is not known."""
        if self.memory is None:
            return ""
        return format_bytes(self.memory.total_bytes) + (", recomputes" if self.recompute else "")

    @property
    def all_reduce_s(self) -> float:
        """Return what its replicas take to agree, once a step, after the last backward."""
        return self.sync_s + self.sync_hops_s

    @property
    def own_data_s(self) -> float:
        """Return DT without the all-reduce and the rows of servers: what overlaps with computation in a step."""
        overlapped_s = 0.0 if self.rows is None else self.rows.overlapped_s
        return max(0.0, self.data_s - self.sync_s - overlapped_s)

    def pull_s(self, micro_batches: int) -> float:
        """Return what it waits for rows of servers before the first forward of a step of so many micro-batches."""
        return 0.0 if self.rows is None else self.rows.pull_s(self.replicas, micro_batches)

    @property
    def push_s(self) -> float:
        """Return what the gradients of its rows take to servers behind the last backward of training."""
        return 0.0 if self.rows is None else self.rows.push_s

    @property
    def own_s(self) -> float:
        """Return what every replica does by itself behind the last backward of training, once a step."""
        return self.handling_s + self.update_s

    def around_actions_s(self, micro_batches: int) -> float:
        """Return what a step has before its first action and behind its last: pull, push, all-reduce, own work."""
        return self.pull_s(micro_batches) + self.push_s + self.all_reduce_s + self.own_s


def mixed_document(stage: PlannedStage) -> dict[str, Any]:
    """Return what JSON documents have besides of a stage with several device types: ``mixed``, a list of them."""
    return {"mixed": [asdict(each) for each in stage.mixed]} if stage.mixed else {}
