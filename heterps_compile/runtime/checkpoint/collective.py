"""Ranks write a checkpoint together, and each reads its part of one.

::

    rank 0                     first replica of stage k          others
    make the new folder
    say where          ------> write weights and optimiser       continue with the next step
    write its own stages
    wait for all       <------ send the hashes of the files
    write state.json, flush, rename, delete old ones

Nobody waits but rank 0. Left out: the files (``format.py``).
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.swap import replacing
from heterps_compile.runtime.data.identity import Identity
from heterps_compile.runtime.launch.faults import PeerError
from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.store_values import read_word
from heterps_compile.runtime.launch.training_file import Scheduler
from heterps_compile.runtime.validation.best import BEFORE_ANY, Standing
from heterps_compile.strict_json import received

from .folder import keep_last, step_name
from .format import AVERAGE, SERVERS_NAME, WEIGHTS, Checkpoint, block_kind, telling_unwritable, write_files, write_state
from .optimizer_state import put_schedule, put_state, read_optimizer, take_state
from .own_state import restore_own_state, rules_to_keep, take_own_state, with_own
from .start import refuse_other, ties_of
from .state import Averaged, RunState, Written
from .table_states import with_tables_of_servers

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from heterps_compile.runtime.c10d import Store
    from heterps_compile.runtime.launch.block_chains import BlockChains
    from heterps_compile.runtime.launch.block_models import BlockModels
    from heterps_compile.runtime.launch.server_rates import ServerRates
    from heterps_compile.runtime.launch.weight_average import WeightAverage
    from heterps_compile.runtime.pipeline.loss_scale import LossScale
    from heterps_compile.runtime.pipeline.replica_state import SharedState
    from heterps_compile.runtime.servers.client import Client

_NEW_FOLDER = re.compile(r"\.heterps-new-[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run, as one rank sees them.

    Attributes:
        prepared: The run.
        options: Its options.
        store: For what ranks tell each other; the main thread's.
        rank: This one.
        held: Parameters and buffers of this rank's stages, stage by stage, by their names in the model.
        optimizer: Of this rank; None where it trains nothing.
        scheduler: Of its learning rates; None where they stay.
        data: What the run reads, as rank 0 knows it; None elsewhere.
        tied_as: Of every stage, the names that the plan has for tensors that go by several, by the stage's own.
        servers: Has parameter servers write their tables; None on all ranks but one, and where there are none.
        rates: Of these tables; None on ranks that use none.
        loss_scale: Of the run's losses; None where they are not scaled.
        validation_data: What the run validates on; None for nothing.
        average: Of this rank's weights; None where none is kept.
        shared: What this rank shares with others; None in an inference.
        keeps_own: Whether every rank writes what it has of its own.
        blocks: The predictors of blocks of the data; None where none are kept.
        chains: Of this rank, that see one block each; None where there are none.
    """

    prepared: Prepared
    options: RunOptions
    store: "Store"
    rank: int
    held: "Mapping[int, Mapping[str, Tensor]]"
    optimizer: "Optimizer | None"
    scheduler: Scheduler | None = None
    data: Identity | None = None
    servers: "Client | None" = None
    rates: "ServerRates | None" = None
    tied_as: "Mapping[int, Mapping[str, str]]" = field(default_factory=dict)
    loss_scale: "LossScale | None" = None
    validation_data: Identity | None = None
    average: "WeightAverage | None" = None
    shared: "SharedState | None" = None
    keeps_own: bool = False
    blocks: "BlockModels | None" = None
    chains: "BlockChains | None" = None

    def write(
        self, step: int, standing: Standing = BEFORE_ANY, metrics: Mapping[str, float] | None = None
    ) -> Path | None:
        """Write a checkpoint after ``step`` steps; called by every rank.

        Args:
            step: Steps done.
            standing: Where the run stands among its validations; the checkpoint of the best one is kept.
            metrics: Of the validation after this step; None where there was none.

        Returns:
            The checkpoint's folder on rank 0, where it is whole; None on others.

        Raises:
            RunError: where something cannot be written.
        """
        own = None
        if self.keeps_own and self.shared is not None:
            own = take_own_state(self.shared, self.optimizer)
        with nullcontext() if self.shared is None else self.shared.agreed():
            if self.rank:
                self._write_for_first(step, own)
                return None
            directory = Path(self.options.checkpoint or "")
            with telling_unwritable(directory):
                target = directory.resolve() / step_name(step)
                if target.is_symlink():  # else what it leads to would be replaced
                    target.unlink()
                with replacing(target) as folder:
                    self.store.set(_folder_key(step), folder.name)
                    self._write_parts(folder, step, own)
                    write_state(folder, self._state(step, standing, metrics))
            keep_last(directory, self.options.keep, None if standing.best is None else step_name(standing.best.step))
            return directory / step_name(step)

    def _write_for_first(self, step: int, own: "Mapping[str, Tensor] | None") -> None:
        """Write the parts of this rank into the folder of rank 0, which deletes it where it cannot write its own."""
        if own is None and self.servers is None and not self._first_of():
            return
        name = read_word(self.store, _folder_key(step), _NEW_FOLDER, "the name of a new folder")
        folder = Path(self.options.checkpoint or "").resolve() / name
        try:
            self._write_parts(folder, step, own)
        except RunError as error:
            if not folder.exists():
                raise PeerError("rank 0 has given the checkpoint up") from error
            raise

    def _write_parts(self, folder: Path, step: int, own: "Mapping[str, Tensor] | None") -> None:
        """Write the parts of this rank, and tell rank 0 the hashes of their files."""
        for part, files in self._parts(own):
            self.store.set(_written_key(step, part), json.dumps(asdict(Written(write_files(folder, files)))))
        if self.servers is not None:
            with telling_unwritable(folder.parent):
                (folder / SERVERS_NAME).mkdir()
            saved = self.servers.save(folder / SERVERS_NAME)
            rates = {} if self.rates is None else {f"optimizer-{SERVERS_NAME}.json": self.rates.take().described()}
            hashes = {f"{SERVERS_NAME}/{name}": found for name, found in saved.items()} | write_files(folder, rates)
            self.store.set(_written_key(step, SERVERS_NAME), json.dumps(asdict(Written(hashes))))

    def _parts(self, own: "Mapping[str, Tensor] | None") -> Iterator[tuple[str, dict[str, Mapping[str, Any]]]]:
        """Yield the parts that this rank writes, tables on servers left out: a name, and the content of its files."""
        if own is not None:
            chains = {} if self.chains is None else {self.chains.file_of(self.rank): self.chains.tensors()}
            yield _own_part(self.rank), {f"{_own_part(self.rank)}.safetensors": own, **chains}
        for stage in self._first_of():
            files: dict[str, Mapping[str, Any]] = {f"{WEIGHTS}-{stage}.safetensors": self.held[stage]}
            if self.optimizer is not None:
                files |= take_state(self.optimizer, self.held[stage], self.scheduler).files(stage)
            if self.average is not None:
                files[f"{AVERAGE}-{stage}.safetensors"] = self.average.of_stage(stage)
            if self.blocks is not None:
                for block in self.blocks.state.made:
                    files[f"{block_kind(block)}-{stage}.safetensors"] = self.blocks.of_stage(block, stage)
            yield str(stage), files

    def _state(self, step: int, standing: Standing, metrics: Mapping[str, float] | None) -> RunState:
        """Return the state of the run on rank 0, once all ranks have written their parts."""
        layout = self.prepared.layout
        parts = [str(stage) for stage in range(layout.stage_count)]
        parts += [SERVERS_NAME] * (self.options.servers.count > 0)
        parts += [_own_part(rank) for rank in range(layout.world_size) if self.keeps_own]
        keys = [_written_key(step, part) for part in parts]
        self.store.wait(keys)
        files: dict[str, str] = {}
        for key in keys:
            files |= received(Written, self.store.get(key), "what a rank says of the files it has written").files
        return RunState(
            step=step,
            samples=step * layout.batch,
            batch=layout.batch,
            seed=self.options.seed,
            model=self.prepared.plan.hashes.get("model", ""),
            plan=self.prepared.plan_sha256,
            stages=tuple(range(layout.stage_count)),
            servers=self.options.servers.count,
            data=self.data,
            files=files,
            tied=ties_of(self.prepared.plan, self.prepared.folder),
            precision=self.prepared.precision,
            scaling=None if self.loss_scale is None else self.loss_scale.state,
            averaged=None if self.average is None else Averaged(self.average.decay, self.average.updates),
            metrics=metrics,
            validations=standing.validations,
            keep_best=self.options.keep_best,
            validation_data=self.validation_data,
            blocks=None if self.blocks is None else self.blocks.state,
            sync=rules_to_keep(self.prepared),
        )

    def _first_of(self) -> list[int]:
        """Return the stages whose first replica this rank is."""
        layout = self.prepared.layout
        return [stage for stage in layout.stages_of(self.rank) if layout.ranks_of(stage)[0] == self.rank]

    def restore_weights(self, checkpoint: Checkpoint, kind: str = WEIGHTS) -> None:
        """Copy a checkpoint's weights and buffers into those of this rank.

        Args:
            checkpoint: To read from.
            kind: Which weights, as :meth:`Checkpoint.kind` returns it.

        Raises:
            RunError: where something is missing or does not fit.
        """
        for stage, tensors in self.held.items():
            self._read_into(checkpoint, stage, tensors, kind)
        if self.average is not None:
            self.average.begin()
        if self.chains is not None:
            self.chains.begin()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint's weights, buffers and optimiser state into those of this rank; needs no other rank.

        Raises:
            RunError: where something is missing or does not fit.
        """
        self.restore_weights(checkpoint)
        state = checkpoint.state
        if self.loss_scale is not None and state.scaling is not None:
            self.loss_scale.state = state.scaling
        if self.average is not None and state.averaged is not None:
            for stage in self.held:
                self._read_into(checkpoint, stage, self.average.of_stage(stage), AVERAGE)
            self.average.updates = state.averaged.updates
        if self.blocks is not None and state.blocks is not None:
            self.blocks.restore(state.blocks)
            for block in state.blocks.made:
                for stage in self.held:
                    self._read_into(checkpoint, stage, self.blocks.of_stage(block, stage), block_kind(block))
        if self.rates is not None:
            self.rates.put(checkpoint.name, read_optimizer(checkpoint, self.rates.tables, with_tensors=False))
        own = {} if self.shared is None else restore_own_state(checkpoint, self.shared)
        if self.optimizer is not None:
            self._restore_optimizer(checkpoint, self.optimizer, own)

    def _restore_optimizer(self, checkpoint: Checkpoint, optimizer: "Optimizer", own: "Mapping[str, Tensor]") -> None:
        """Give optimiser, chains and scheduler their states; ``own`` is what only this rank's optimiser has."""
        named = {name: tensor for tensors in self.held.values() for name, tensor in tensors.items()}
        known = with_tables_of_servers(checkpoint, read_optimizer(checkpoint, named), optimizer, named)
        if known is None:
            raise RunError(
                f"{checkpoint.name} has no state of an optimiser for these stages; it is of another model or file"
            )
        if (known.schedule is None) != (self.scheduler is None):
            has, lacks = ("no", "one") if known.schedule is None else ("a", "none")
            raise RunError(
                f"{checkpoint.name} has {has} state of a scheduler and the training file makes {lacks}; go on with "
                f"the file it was written with, or start anew from its weights (--weights) in another folder"
            )
        if self.chains is not None:
            self.chains.restore(checkpoint, self.rank, known)
        put_state(optimizer, named, with_own(known, own))
        if self.scheduler is not None and known.schedule is not None:
            put_schedule(self.scheduler, optimizer, known.schedule)

    def _read_into(self, checkpoint: Checkpoint, stage: int, into: "Mapping[str, Tensor]", kind: str) -> None:
        """Copy tensors of a checkpoint into those of a stage, by name."""
        import torch  # noqa: PLC0415 - torch only in the processes of a run

        tied_as = self.tied_as.get(stage, {})
        buffers = [name for name, tensor in self.held[stage].items() if not isinstance(tensor, torch.nn.Parameter)]
        names = dict.fromkeys([*into, *tied_as.values()])
        found = checkpoint.weights(names, kind, optional=[*buffers, *tied_as.values()])
        common = [name for name in found if name in into]
        for name in common:
            refuse_other(checkpoint, name, _described(found[name]), _described(into[name]))
        _refuse_untied(checkpoint, found, into, tied_as)
        with torch.no_grad():
            for name in common:
                into[name].copy_(found[name])


def _refuse_untied(
    checkpoint: Checkpoint, loaded: "Mapping[str, Tensor]", into: "Mapping[str, Tensor]", tied_as: Mapping[str, str]
) -> None:
    """Refuse tensors that are one in the plan's model and differ in the checkpoint.

    Args:
        checkpoint: It is.
        loaded: Its tensors by name.
        into: Those of a stage, by name; what is tied is one tensor under several names.
        tied_as: Of names, the one that the plan has for a tensor; it may be in another stage.

    Raises:
        RunError: with both names.
    """
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    first: dict[int, str] = {}
    for name in loaded:
        others = [tied_as.get(name, name), first.setdefault(id(into.get(name, name)), name)]
        for other in others:
            if other in loaded and not torch.equal(loaded[name], loaded[other]):
                raise RunError(
                    f"{checkpoint.name} has other numbers in {printable(name)!r} than in {printable(other)!r}, which "
                    f"are one tensor in the plan's model; it is of another model"
                )


def _described(tensor: "Tensor") -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype), tuple(tensor.shape)


def _own_part(rank: int) -> str:
    return f"own-{rank}"


def _folder_key(step: int) -> str:
    return f"checkpoint/{step}/folder"


def _written_key(step: int, part: str) -> str:
    return f"checkpoint/{step}/written/{part}"
