"""What is held against the clock, and the table of it: combinations of model, cut and batch, and a row for each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from heterps_compile.cost.profile import LinkProfile
from heterps_compile.runtime.predict import Overheads
from heterps_compile.schedule.order import Phase


@dataclass(frozen=True, slots=True)
class Case:
    """One run: where the model is cut is told by the share of the work of each stage."""

    model: str
    training: bool
    shares: tuple[float, ...]
    batch: int
    micro_batches: int

    @property
    def schedule(self) -> str:
        return "1f1b" if self.training else "gpipe"

    @property
    def micro_batch(self) -> int:
        return self.batch // self.micro_batches


HALVES, THIRDS, EARLY = (0.5, 0.5), (0.34, 0.33, 0.33), (0.25, 0.75)
CASES = (
    Case("ctrdnn", False, HALVES, 512, 8),
    Case("ctrdnn", False, EARLY, 1024, 8),
    Case("ctrdnn", True, HALVES, 512, 8),
    Case("ctrdnn", True, THIRDS, 1024, 8),
    Case("matchnet", False, HALVES, 1024, 8),
    Case("matchnet", True, HALVES, 2048, 8),
    Case("mlp", False, HALVES, 256, 8),
    Case("mlp", False, THIRDS, 512, 8),
    Case("mlp", True, HALVES, 512, 8),
    Case("mlp", True, EARLY, 1024, 8),
    Case("resnet", False, HALVES, 64, 8),
    Case("resnet", True, HALVES, 64, 8),
    Case("resnet", True, THIRDS, 32, 4),
    Case("bert", False, HALVES, 64, 8),
    Case("bert", True, HALVES, 64, 8),
    Case("gpt2", False, THIRDS, 64, 8),
    Case("gpt2", True, HALVES, 32, 8),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A case, what was predicted, what the plan alone says, and what was measured."""

    case: Case
    stages: tuple[tuple[int, str, float, float], ...]
    predicted_step_s: float
    planned_step_s: float
    measured_step_s: float
    load: float

    @property
    def stage_errors(self) -> list[float]:
        return [predicted / measured - 1 for _, _, predicted, measured in self.stages]

    @property
    def throughput_error(self) -> float:
        return self.measured_step_s / self.predicted_step_s - 1

    @property
    def planned_error(self) -> float:
        return self.planned_step_s / self.measured_step_s - 1


HEAD = (
    f"{'model':9} {'mode':9} {'cut':>15} {'batch':>5} {'M':>2}  {'stage times, predicted/measured ms':54} "
    f"{'step ms':>15} {'error':>7} {'plan':>7}  load"
)


def overhead_lines(inference: Overheads, training: Overheads, link: LinkProfile, cores: int) -> Iterator[str]:
    """Yield what the runtime was found to add in both modes, and what actions take longer."""

    def shown(times_s: Mapping[str, float]) -> str:
        return "/".join(f"{times_s[phase] * 1e6:.0f}" for phase in (Phase.FORWARD, Phase.BACKWARD))

    yield (
        f"{cores} cores; actions of a run {inference.together:.2f} x as long as in a profile in inference, "
        f"{training.together:.2f} x in training; with more ranks than cores steps "
        f"{inference.crowded:.2f} x (actions {inference.switched:.2f} x) in inference, {training.crowded:.2f} x "
        f"({training.switched:.2f} x) in training; "
        f"link {link.latency_s * 1e6:.0f} us + {link.bytes_per_s / 1e9:.2f} GB/s"
    )
    yield (
        f"the runtime adds, in us of a forward/backward: {shown(training.inside_s)} inside, "
        f"{shown(training.outside_s)} around, {shown(training.loss_s)} for the loss; "
        f"and {training.byte_s * 1e9:.2f} ns a byte"
    )


def print_row(row: Row) -> None:
    case = row.case
    stages = " ".join(f"{phase[0].upper()}{stage} {p * 1e3:.2f}/{m * 1e3:.2f}" for stage, phase, p, m in row.stages)
    steps = f"{row.predicted_step_s * 1e3:.1f}/{row.measured_step_s * 1e3:.1f}"
    cut = "+".join(f"{share:.2f}" for share in case.shares)
    mode = "training" if case.training else "inference"
    print(
        f"{case.model:9} {mode:9} {cut:>15} {case.batch:5d} {case.micro_batches:2d}  {stages:54} {steps:>15} "
        f"{row.throughput_error:+7.1%} {row.planned_error:+7.1%}  {row.load:.1f}",
        flush=True,
    )


def print_summary(rows: Sequence[Row], took_s: float) -> None:
    for what, errors in (
        ("stage times", [error for row in rows for error in row.stage_errors]),
        ("throughput", [row.throughput_error for row in rows]),
        ("steps of plans, on cores of their own", [row.planned_error for row in rows]),
    ):
        sizes = sorted(abs(error) for error in errors)
        print(
            f"{what}: {len(sizes)} compared, median error {median(sizes):.1%}, largest {sizes[-1]:.1%}, "
            f"{sum(size <= 0.10 for size in sizes)} within 10 %, {sum(size <= 0.25 for size in sizes)} within 25 %"
        )
    print(f"{len(rows)} combinations in {took_s:.0f} s")
