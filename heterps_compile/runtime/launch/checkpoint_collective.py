"""Ranks write a checkpoint together, and read one back.

::

    rank 0                     first replica of stage k          others
    make the folder aside
    say where          ------> write weights and optimiser       go on with the next step
    write its own stages
    wait for all       <------ say that they are written, and the hashes of the files
    write state.json, flush, rename, delete old ones

Nobody waits but rank 0. Left out: the files (``checkpoint_format.py``).
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.swap import replacing
from heterps_compile.runtime.data.identity import Identity
from heterps_compile.runtime.validation.best import BEFORE_ANY, Standing

from .block_notes import refuse_unknown_block
from .checkpoint_folder import keep_last, step_name
from .checkpoint_format import (
    SERVERS_NAME,
    make_servers_folder,
    read_optimizer,
    read_state,
    read_weights,
    write_average,
    write_block,
    write_optimizer,
    write_stage,
    write_state,
)
from .checkpoint_hashes import is_hash
from .checkpoint_start import refuse_other, refuse_untied, ties_of
from .checkpoint_state import Averaged, RunState
from .faults import PeerError
from .optimizer_state import put_schedule, put_state, take_schedule, take_state
from .own_state import restore_own_state, rules_to_keep, take_own_state, with_own, write_own_state
from .prepare import Prepared
from .run_options import RunOptions
from .store_values import read_word
from .table_states import with_tables_of_servers
from .training_file import Scheduler

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer

    from heterps_compile.runtime.c10d import Store
    from heterps_compile.runtime.pipeline.loss_scale import LossScale
    from heterps_compile.runtime.pipeline.replica_state import SharedState
    from heterps_compile.runtime.servers.client import Client

    from .block_chains import BlockChains
    from .block_models import BlockModels
    from .server_rates import ServerRates
    from .weight_average import WeightAverage

_NEW_FOLDER = re.compile(r"\.heterps-new-[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run, as one rank sees them.

    Attributes:
        prepared: The run.
        options: Its options.
        directory: Where they lie.
        store: For what ranks tell each other; the main thread's.
        rank: This one.
        parameters: Of this rank's stages, stage by stage, by their names in the model.
        buffers: The same of buffers.
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
    directory: Path
    store: "Store"
    rank: int
    parameters: "Mapping[int, Mapping[str, Parameter]]"
    buffers: "Mapping[int, Mapping[str, Tensor]]"
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
        """Write what is known after ``step`` steps; called by every rank.

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
            return self._write(step, standing, metrics, own)

    def _write(
        self,
        step: int,
        standing: Standing,
        metrics: Mapping[str, float] | None,
        own: "Mapping[str, Tensor] | None",
    ) -> Path | None:
        """Write a checkpoint, while replicas hold what they agree on."""
        mine = self._stages_to_write()
        if self.rank != 0:
            if mine or self.servers is not None or own is not None:
                name = read_word(self.store, _folder_key(step), _NEW_FOLDER, "the name of a new folder")
                self._write_for_first(self.directory.resolve() / name, mine, step, own)
            return None
        try:
            target = self.directory.resolve() / step_name(step)
            if target.is_symlink():  # else what it leads to would be replaced
                target.unlink()
            with replacing(target) as folder:
                self.store.set(_folder_key(step), folder.name)
                self._write_mine(folder, mine, step, own)
                servers = [SERVERS_NAME] if self.options.servers.count else []
                ranks = range(self.prepared.layout.world_size if self.keeps_own else 0)
                parts = (*self._all_stages(), *servers, *map(_own_part, ranks))
                keys = [_written_key(step, part) for part in parts]
                self.store.wait(keys)
                files: dict[str, str] = {}
                for key in keys:
                    files |= _hashes_from_json(self.store.get(key))
                state = replace(self._state(step, files), metrics=metrics, validations=standing.validations)
                write_state(folder, state)
        except OSError as error:
            raise RunError(f"cannot write a checkpoint in {str(self.directory)!r}: {error.strerror}") from error
        spared = None if standing.best is None else step_name(standing.best.step)
        keep_last(self.directory, self.options.keep, spared)
        return self.directory / step_name(step)

    def restore_weights(self, checkpoint: Path, *, averaged: bool = False, block: int | None = None) -> None:
        """Put a checkpoint's weights and buffers into those of this rank, or the average of them.

        Args:
            checkpoint: Its folder.
            averaged: The average.
            block: Or the predictor of this block, from 0.

        Raises:
            RunError: where something is missing or does not fit.
        """
        state = read_state(checkpoint)
        if averaged and state.averaged is None:
            raise RunError(f"{checkpoint.name} has no average of its weights; leave --averaged out")
        if block is not None:
            refuse_unknown_block(checkpoint, state, block)
        for stage, parameters in self.parameters.items():
            into = {**parameters, **self.buffers[stage]}
            self._read_into(checkpoint, state, stage, into, averaged=averaged, block=block)
        if self.average is not None:
            self.average.begin()
        if self.chains is not None:
            self.chains.begin()

    def _read_into(
        self,
        checkpoint: Path,
        state: RunState,
        stage: int,
        into: "Mapping[str, Tensor]",
        *,
        averaged: bool = False,
        block: int | None = None,
    ) -> None:
        """Put tensors of a checkpoint, or the average of them, into those of a stage, by name."""
        import torch  # noqa: PLC0415 - torch only in the processes of a run

        tied_as = self.tied_as.get(stage, {})
        names = dict.fromkeys([*into, *tied_as.values()])
        optional = [*self.buffers[stage], *tied_as.values()]
        found = read_weights(checkpoint, state, names, optional=optional, averaged=averaged, block=block)
        for name, tensor in found.items():
            if name in into:
                refuse_other(checkpoint, name, _described(tensor), _described(into[name]))
        refuse_untied(checkpoint, found, into, tied_as)
        with torch.no_grad():
            for name, tensor in found.items():
                if name in into:
                    into[name].copy_(tensor)

    def restore(self, checkpoint: Path) -> None:
        """Put a checkpoint's weights, buffers and optimiser state into those of this rank; no other is needed for it.

        Raises:
            RunError: where something is missing or does not fit.
        """
        self.restore_weights(checkpoint)
        state = read_state(checkpoint)
        if self.loss_scale is not None and state.scaling is not None:
            self.loss_scale.state = state.scaling
        if self.average is not None and state.averaged is not None:
            for stage in self.parameters:
                self._read_into(checkpoint, state, stage, self.average.of_stage(stage), averaged=True)
            self.average.updates = state.averaged.updates
        self._restore_blocks(checkpoint, state)
        if self.rates is not None:
            tables = read_optimizer(checkpoint, state, self.rates.tables, with_tensors=False)
            self.rates.put(checkpoint.name, tables)
        own = {} if self.shared is None else restore_own_state(checkpoint, state, self.shared)
        if self.optimizer is not None:
            named = {name: p for parameters in self.parameters.values() for name, p in parameters.items()}
            known = read_optimizer(checkpoint, read_state(checkpoint), named)
            known = with_tables_of_servers(checkpoint, known, self.optimizer, list(named.items()))
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
                self.chains.restore(checkpoint, state, self.rank, known)
            put_state(self.optimizer, list(named.items()), with_own(known, own))
            if self.scheduler is not None and known.schedule is not None:
                put_schedule(self.scheduler, self.optimizer, known.schedule)

    def _restore_blocks(self, checkpoint: Path, state: RunState) -> None:
        """Go on with the predictors of a checkpoint, where it has some and the run keeps them."""
        if self.blocks is None or state.blocks is None:
            return
        self.blocks.restore(state.blocks)
        for block in state.blocks.made:
            for stage in self.parameters:
                self._read_into(checkpoint, state, stage, self.blocks.of_stage(block, stage), block=block)

    def _write_for_first(
        self, folder: Path, stages: Sequence[int], step: int, own: "Mapping[str, Tensor] | None"
    ) -> None:
        """Write what is this rank's into the folder of rank 0, which deletes it where it cannot write its own."""
        try:
            self._write_mine(folder, stages, step, own)
        except RunError as error:
            if not folder.exists():
                raise PeerError("rank 0 has given the checkpoint up") from error
            raise

    def _write_mine(self, folder: Path, stages: Sequence[int], step: int, own: "Mapping[str, Tensor] | None") -> None:
        if own is not None:
            files = write_own_state(folder, self.rank, own)
            if self.chains is not None:
                files |= self.chains.write(folder, self.rank)
            self.store.set(_written_key(step, _own_part(self.rank)), json.dumps(files))
        for stage in stages:
            parameters = self.parameters[stage]
            state = None if self.optimizer is None else take_state(self.optimizer, list(parameters.items()))
            if state is not None and self.scheduler is not None:
                state = replace(state, schedule=take_schedule(self.scheduler))
            files = write_stage(folder, stage, {**parameters, **self.buffers[stage]}, state)
            if self.average is not None:
                files |= write_average(folder, stage, self.average.of_stage(stage))
            if self.blocks is not None:
                for block in self.blocks.state.made:
                    files |= write_block(folder, block, stage, self.blocks.of_stage(block, stage))
            self.store.set(_written_key(step, stage), json.dumps(files))
        if self.servers is not None:
            make_servers_folder(folder)
            saved = self.servers.save(folder / SERVERS_NAME)
            files = {f"{SERVERS_NAME}/{name}": found for name, found in saved.items()}
            if self.rates is not None:
                files |= write_optimizer(folder, SERVERS_NAME, self.rates.take())
            self.store.set(_written_key(step, SERVERS_NAME), json.dumps(files))

    def _state(self, step: int, files: Mapping[str, str]) -> RunState:
        layout = self.prepared.layout
        return RunState(
            step=step,
            samples=step * layout.batch,
            batch=layout.batch,
            seed=self.options.seed,
            model=self.prepared.plan.hashes.get("model", ""),
            plan=self.prepared.plan_sha256,
            stages=tuple(self._all_stages()),
            servers=self.options.servers.count,
            data=self.data,
            files=files,
            tied=ties_of(self.prepared),
            precision=self.prepared.precision,
            scaling=None if self.loss_scale is None else self.loss_scale.state,
            averaged=None if self.average is None else Averaged(self.average.decay, self.average.updates),
            keep_best=self.options.keep_best,
            validation_data=self.validation_data,
            blocks=None if self.blocks is None else self.blocks.state,
            sync=rules_to_keep(self.prepared),
        )

    def _all_stages(self) -> range:
        return range(self.prepared.layout.stage_count)

    def _stages_to_write(self) -> list[int]:
        """Return the stages whose first replica this rank is."""
        layout = self.prepared.layout
        return [stage for stage in layout.stages_of(self.rank) if layout.ranks_of(stage)[0] == self.rank]


def _own_part(rank: int) -> str:
    return f"own-{rank}"


def _described(tensor: "Tensor") -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype), tuple(tensor.shape)


def _folder_key(step: int) -> str:
    return f"checkpoint/{step}/folder"


def _hashes_from_json(text: bytes) -> dict[str, str]:
    """Read what a rank says that it has written.

    Raises:
        RunError: where that is something else.
    """
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not all(map(is_hash, said.values())):
        raise RunError(f"a rank says {printable(repr(text[:60]))} of the files it has written; start the run again")
    return said


def _written_key(step: int, part: int | str) -> str:
    return f"checkpoint/{step}/written/{part}"
