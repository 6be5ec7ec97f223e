"""The one loop of a run: start its ranks, follow them to their end, and start them again where that is due.

::

    machines   widths  ->  ranks start  ->  followed  -> ...................... 0: over
                 ^                            |  other widths are requested, or a machine comes or goes:
                 |                            |  ranks stop after a step, with a checkpoint
                 +----- from the checkpoint --+  a machine or a rank is lost: from the last one

The loop is the same for this machine and for a cluster. Ranks that cannot be stopped while they begin are stopped once
they have kept a checkpoint. What ranks did after the checkpoint that they continue from is gone with them: every sample
counts once. The first Ctrl-C ends the run after the step, a second one at once.

Not covered: how ranks start and end (``local_machine.py``, ``ray_nodes.py``), which widths fit (``deal.py``), how often
and how long (``elastic_limits.py``).
"""

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from heterps_compile.errors import SIGNALLED, HeterpsError, RunError, RunKilledError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.checkpoint.folder import STATE_NAME, find_checkpoints, holding_checkpoints
from heterps_compile.runtime.checkpoint.start import check_same_model
from heterps_compile.runtime.launch.prepare import Prepared, prepare
from heterps_compile.runtime.launch.resize import Resize, ResizeRequests, hosting_requests
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.stop_signals import RESIZED_BY, collecting_signals
from heterps_compile.runtime.telemetry.step_log import append_decisions
from heterps_compile.units import counted

from .advice import WAIT, Advisor, Loss, ask
from .deal import Deal, Dealt, Host, deal_widths, step_time_s, with_widths
from .elastic_limits import Absences, Limits
from .machines import Left, Machines

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        code: The exit code of this process.
        restarts: Starts after a failure.
        changes: Starts with other widths.
    """

    code: int
    restarts: int
    changes: int


def drive(machines: Machines, wanted: Dealt, limits: Limits, advisor: Advisor | None = None) -> Ending:
    """Start a run, follow it to the end, and start it again where that is due.

    Args:
        machines: It runs on.
        wanted: The run as requested.
        limits: How often it is restarted, and on how many machines it runs.
        advisor: Decides about lost machines; None to continue on those that are left.

    Raises:
        HeterpsError: where it cannot be started, or ended with a fault that no rank printed.
    """
    with collecting_signals() as caught, hosting_requests(wanted.options) as requests:
        return _Run(machines, wanted, limits, advisor, caught, requests).run()


class _Run:
    """A run from its first start to its end.

    ``_wanted`` has the widths that were asked for, which a start may lack machines for.
    """

    def __init__(  # noqa: PLR0917 - what one run is driven by
        self,
        machines: Machines,
        wanted: Dealt,
        limits: Limits,
        advisor: Advisor | None,
        signals: list[int],
        requests: ResizeRequests | None,
    ) -> None:
        self._machines, self._wanted, self._limits = machines, wanted, limits
        self._signals, self._requests = signals, requests
        self._advisor, self._begun_s = advisor, time.monotonic()
        self._absences = Absences(limits)
        self._restarts = self._changes = 0
        self._decisions: list[tuple[float, str]] = []
        self._before: tuple[str, int] | None = None

    def run(self) -> Ending:
        dealt = self._wanted
        if self._limits.elastic is not None:
            dealt = self._gathered(dealt)
            if dealt.widths != self._wanted.widths:
                self._say(f"begins with {self._shown(dealt)} in place of {self._widths(self._wanted)}")
        while True:
            left, change = self._follow(dealt)
            signals = self._signals
            if left.code == 0 and left.error is None:
                break
            if signals:
                return self._ending(left, SIGNALLED + signals[0] if left.is_for_other_widths else left.code)
            if change is not None and left.is_for_other_widths:
                self._changes += 1
                dealt = self._resumed(change)
                continue
            if left.is_over or self._restarts >= self._limits.max_restarts:
                if self._restarts and not left.is_over:
                    self._say(f"no further restart: {self._restarts} of {self._limits.max_restarts} are done")
                return self._ending(left, left.code)
            dealt = self._restarted(dealt, change or dealt, left)
        if self._restarts or self._changes:
            self._say(
                f"done, after {counted(self._restarts, 'restart')} and {counted(self._changes, 'change')} of widths"
            )
        return self._ending(left, 0)

    def _ending(self, left: Left, code: int) -> Ending:
        self._log_decisions()
        if left.error is not None:
            raise left.error
        return Ending(code, self._restarts, self._changes)

    # ---- one start

    def _follow(self, dealt: Dealt) -> tuple[Left, Dealt | None]:
        """Start the ranks and wait until they have left; return how, and what they are to continue with.

        Raises:
            RunKilledError: at the second signal.
        """
        signals = self._signals
        self._before = _last_checkpoint(dealt.options)
        started = self._machines.start(dealt)
        look = _Look(self._machines, self._limits)
        change: Dealt | None = None
        is_stopping = is_interrupted = False
        try:
            while not started.poll(time.monotonic()):
                if len(signals) > 1:
                    raise RunKilledError("interrupted twice: the ranks were killed in the middle of a step", signals[0])
                if signals and not is_interrupted:
                    is_interrupted = True
                    self._say(f"{signal.Signals(signals[0]).name}: stopping after this step")
                    if not is_stopping:  # a second signal would end ranks that stop for other widths
                        started.stop(signals[0])
                change = self._asked_for(dealt, change) or change
                if change is None and not signals and self._limits.elastic is not None:
                    change = self._found(dealt, look)
                if change is not None and not is_stopping and not signals and self._may_stop(dealt):
                    is_stopping = True
                    started.stop(RESIZED_BY)
                time.sleep(POLL_S)
        finally:
            left = started.close()
            self._log_decisions()
        return left, change

    def _may_stop(self, dealt: Dealt) -> bool:
        """Check whether ranks can be stopped now: those of a cluster once all have begun, so kept a checkpoint."""
        return self._machines.stops_at_once or _last_checkpoint(dealt.options) != self._before

    def _asked_for(self, dealt: Dealt, change: Dealt | None) -> Dealt | None:
        """Look for a request to go on otherwise, and answer it; return what the run goes on with."""
        requests = self._requests
        wanted = None if requests is None else requests.next()
        if requests is None or wanted is None:
            return None
        if change is not None or self._signals:
            requests.answer("it is being stopped or resized already", refused=True)
            return None
        try:
            asked, found = self._checked(wanted)
        except HeterpsError as error:
            requests.answer(str(error), refused=True)
            return None
        until = self._until(dealt)
        requests.answer(f"{self._widths(dealt)} until {until}, then {_listed(found.widths)}", refused=False)
        self._say(f"resized: {self._shown(dealt)} until {until}, then {self._shown(found)}")
        self._wanted = asked
        return found

    def _checked(self, resize: Resize) -> tuple[Dealt, Dealt]:
        """Return the run that a request asks for, and as it is dealt to the machines.

        Raises:
            HeterpsError: where it cannot be.
        """
        before = self._wanted
        if before.options.every is None and not self._machines.stops_at_once:
            raise RunError(
                "over several machines a run changes its widths once it has kept a checkpoint, and this one keeps none "
                "before its end (--every N); end it (Ctrl-C), and start it again with --resume and other --replicas"
            )
        options = replace(resize.applied(before.options), batch=before.prepared.layout.batch)
        asked = Dealt(options, prepare(options), ())
        check_same_model(before.prepared, asked.prepared)
        hosts = self._awake() if self._limits.elastic is not None else self._machines.listed()
        return asked, replace(asked, deal=self._fill(asked.prepared, hosts))

    def _found(self, dealt: Dealt, look: "_Look") -> Dealt | None:
        """Look for machines that have come or gone; return what the run goes on with, if that is better for it."""
        using = [name for name, _ in dealt.deal]
        there = look.there(using, self._absences)
        if look.trouble:
            self._say(f"the run goes on with the hosts that it has: {look.trouble}")
        if there is None:
            return None
        names = {host.address for host in there}
        gone = [name for name in using if name not in names]
        found, lack = self._fitting_elastic(there)
        if found is None:
            if gone:
                self._say(f"{', '.join(gone)} left, and {lack}: the run goes on with the hosts that it has")
            return None
        if not gone and not _is_wider(self._wanted, found, dealt):
            return None
        came = [name for name, _ in found.deal if name not in using]
        why = [f"{', '.join(which)} {word}" for which, word in ((came, "came"), (gone, "left")) if which]
        self._say(
            f"{' and '.join(why) or 'the hosts have other slots'}: {self._shown(dealt)} until {self._until(dealt)}, "
            f"then {self._shown(found)}"
        )
        return found

    # ---- between two

    def _restarted(self, failed: Dealt, wanted: Dealt, left: Left) -> Dealt:
        """Return what the run goes on with after a failure.

        Args:
            failed: What ran.
            wanted: What it was to go on with.
            left: How it left.

        Raises:
            RunError: where machines are missing for too long.
        """
        self._restarts += 1
        if left.error is not None:
            self._say(str(left.error))
        self._absences = self._absences.lose(left.lost, time.monotonic())
        for name in left.lost:
            times = self._absences.times[name]
            rest_s = self._absences.rest_s(times)
            self._say(f"{name} is lost for the {_ordinal(times)} time: it is not asked for {rest_s:g} s")
        self._wait_for_checkpoints()
        found = self._awaited(wanted) if self._is_waiting_advised(failed, left) else self._gathered(wanted)
        start = _last_checkpoint(found.options)
        where = "the beginning" if start is None else printable(start[0])
        before, now = self._shown(failed), self._shown(found)
        changed = "" if before == now else f": {before} before, {now} now"
        self._say(f"restart {self._restarts} of {self._limits.max_restarts}, from {where}{changed}")
        return self._resumed(found)

    def _is_waiting_advised(self, failed: Dealt, left: Left) -> bool:
        """Ask what to do about lost hosts, where somebody knows; a run that is to move ends here with a RunError."""
        if self._advisor is None or not left.lost:
            return False
        hosts = tuple(name for name, _ in failed.deal)
        loss = Loss(hosts, left.lost, time.monotonic() - self._begun_s, self._machines.patience_s)
        try:
            return ask(self._advisor, loss, self._say) == WAIT
        finally:
            self._log_decisions()
            self._pause(POLL_S)  # a signal that came meanwhile ends the run

    def _awaited(self, wanted: Dealt) -> Dealt:
        """Wait for others in the place of lost hosts; return the run on all that it wants, or on what is there then."""
        patience_s = self._machines.patience_s
        deadline_s = time.monotonic() + patience_s
        self._say(f"waiting for up to {patience_s:g} s for others in the place of those that were lost")
        while True:
            found, _ = self._fitting(wanted, self._awake())
            if found is not None and found.widths == self._wanted.widths:
                return found
            if time.monotonic() > deadline_s:
                self._say(f"no others came within {patience_s:g} s")
                return self._gathered(wanted)
            self._pause(self._limits.look_s)

    def _wait_for_checkpoints(self) -> None:
        """Wait until no rank of a machine that was cut off holds the folder of checkpoints: it ends by itself."""
        deadline_s = time.monotonic() + self._machines.patience_s
        told = False
        while time.monotonic() < deadline_s:  # then the ranks that start say who holds it
            try:
                with holding_checkpoints(self._wanted.options.checkpoint):
                    return
            except RunError:
                if not told:
                    self._say("waiting until ranks that were cut off have ended: one still holds the checkpoints")
                told = True
            self._pause(self._limits.look_s)

    def _gathered(self, before: Dealt) -> Dealt:
        """Wait until there are machines that take the run; return it on these.

        Raises:
            RunError: where they do not come in time.
        """
        deadline_s = time.monotonic() + self._machines.patience_s
        told = ""
        while True:
            hosts = self._awake()
            found, lack = self._fitting(before, hosts)
            if found is not None:
                return found
            if not told:
                told = f"{lack}; waiting for up to {self._machines.patience_s:g} s for others"
                self._say(told)
            if time.monotonic() > deadline_s:
                raise RunError(f"{lack}, and no others came within {self._machines.patience_s:g} s: the run has ended")
            self._pause(self._limits.look_s)

    def _fitting(self, before: Dealt, hosts: Sequence[Host]) -> tuple[Dealt | None, str]:
        """Return the run on machines that are there, or what they lack."""
        if self._limits.elastic is None:
            listed = {host.address for host in self._machines.listed()}
            absent = sorted(listed - {host.address for host in hosts})
            if absent:
                return None, f"missing: {', '.join(absent)}"
            lack = self._lack(before.prepared, hosts)
            return (None if lack else before), lack
        return self._fitting_elastic(hosts)

    def _fitting_elastic(self, hosts: Sequence[Host]) -> tuple[Dealt | None, str]:
        """Return the run on machines that are there, with the widths that fit, or what they lack for the least."""
        short = self._limits.short_of(len(hosts))
        if short:
            return None, short
        wanted = self._wanted
        found = deal_widths(wanted.prepared, wanted.options, hosts, self._fill)
        if found is not None:
            return found, ""
        least = with_widths(wanted.prepared, wanted.options, (1,) * len(wanted.widths))
        return None, self._lack(wanted.prepared if least is None else least[1], hosts)

    def _fill(self, prepared: Prepared, hosts: Sequence[Host]) -> Deal:
        """Distribute the processes of a run over machines, no more than the most.

        Raises:
            RunError: where these do not take them.
        """
        deal = self._machines.fill(prepared, hosts)
        if not self._limits.takes(deal):
            processes = f"{prepared.world_size} processes would take {counted(len(deal), 'host')}"
            raise RunError(f"{processes}, more than {self._limits.words}")
        return deal

    def _lack(self, prepared: Prepared, hosts: Sequence[Host]) -> str:
        """Return the reason why machines do not take a run; "" if they do."""
        try:
            self._fill(prepared, hosts)
        except RunError as error:
            return str(error)
        return ""

    def _awake(self) -> tuple[Host, ...]:
        """Return the machines that are alive and do not rest."""
        return self._absences.awake(self._machines.listed(), time.monotonic())

    def _pause(self, duration_s: float) -> None:
        """Wait; end where somebody asks this process to.

        Raises:
            RunKilledError: then.
        """
        until_s = time.monotonic() + duration_s
        while time.monotonic() < until_s:
            if self._signals:
                name = signal.Signals(self._signals[0]).name
                raise RunKilledError(f"stopped by {name} while no ranks ran; go on with --resume", self._signals[0])
            time.sleep(min(POLL_S, duration_s))

    def _resumed(self, dealt: Dealt) -> Dealt:
        """Return a run that goes on from its last checkpoint; with weights to begin with, where there is none yet."""
        self._wanted = _resumed(self._wanted)
        return _resumed(dealt)

    # ---- words

    def _shown(self, dealt: Dealt) -> str:
        where = ", ".join(f"{name}={count}" for name, count in dealt.deal)
        hosts = f" on {counted(len(dealt.deal), 'host')} ({where})" if where else ""
        return f"{self._widths(dealt)}{hosts}"

    def _widths(self, dealt: Dealt) -> str:
        return f"replicas {_listed(dealt.widths)}"

    def _until(self, dealt: Dealt) -> str:
        """Say when ranks stop for other widths."""
        return "this step is done" if self._may_stop(dealt) else f"the next checkpoint (--every {dealt.options.every})"

    def _say(self, sentence: str) -> None:
        text = one_line(printable(sentence))
        self._machines.say(text)
        self._decisions.append((time.time(), text))

    def _log_decisions(self) -> None:
        """Add what was decided to the log; only while no rank writes to it."""
        if self._wanted.options.log is not None:
            append_decisions(Path(self._wanted.options.log), self._decisions)
        self._decisions.clear()


class _Look:
    """Looks now and then for machines that have come or gone."""

    def __init__(self, machines: Machines, limits: Limits) -> None:
        self._machines, self._limits = machines, limits
        self._due_s = 0.0
        self._judged: tuple[Host, ...] = ()
        self._last_trouble = self.trouble = ""

    def there(self, using: Sequence[str], absences: Absences) -> tuple[Host, ...] | None:
        """Return the machines that are alive, without those that rest; None if that is no news."""
        now_s = time.monotonic()
        self.trouble = ""
        if now_s < self._due_s:
            return None
        self._due_s = now_s + self._limits.look_s
        try:
            listed = self._machines.listed()
        except HeterpsError as error:
            told, self._last_trouble = self._last_trouble, str(error)
            self.trouble = "" if told == str(error) else str(error)
            return None
        awake = {host.address for host in absences.awake(listed, now_s)} | set(using)
        there = tuple(host for host in listed if host.address in awake)
        if there == self._judged:
            return None
        self._judged = there
        return there


def _is_wider(wanted: Dealt, found: Dealt, dealt: Dealt) -> bool:
    """Tell whether what was found is what was asked for and the run has less, or is faster by the plan's times."""
    if found.widths == dealt.widths:
        return False
    time_s = step_time_s(wanted.prepared.plan, wanted.prepared.layout)
    of_step = [max(time_s(at, width) for at, width in enumerate(one.widths)) for one in (found, dealt)]
    return found.widths == wanted.widths or of_step[0] < of_step[1]


def _resumed(dealt: Dealt) -> Dealt:
    options = dealt.options
    if options.weights is not None and _last_checkpoint(options) is None:
        return dealt  # it begins again with these weights
    resumes = options.checkpoint is not None
    return replace(dealt, options=replace(options, resume=resumes, weights=None, averaged=False, block=None))


def _last_checkpoint(options: RunOptions) -> tuple[str, int] | None:
    """Return the name of the last checkpoint, and when it was finished; None for none."""
    if options.checkpoint is None:
        return None
    with suppress(OSError):
        found = find_checkpoints(Path(options.checkpoint))
        return (found[-1].name, (found[-1] / STATE_NAME).stat().st_mtime_ns) if found else None
    return None


def _listed(widths: Sequence[int]) -> str:
    return ", ".join(map(str, widths))


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"
