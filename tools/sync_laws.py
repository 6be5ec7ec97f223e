"""What each rule of synchronisation must come to, worked out from its definition, beside what our code comes to.

One function a published method; ``bench_sync.py`` prints the lines.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heterps_compile.runtime.sync.algorithms.adasum import combine, combine_all, expected_projection
from heterps_compile.runtime.sync.algorithms.adsaga import AsyncSaga
from heterps_compile.runtime.sync.algorithms.error_feedback import send_with_feedback
from heterps_compile.runtime.sync.algorithms.hierarchy import sum_dense, sum_top_k
from heterps_compile.runtime.sync.algorithms.layerwise_norms import lamb_ratios, lars_ratios, squares_of_shard
from heterps_compile.runtime.sync.algorithms.least_squares import LeastSquares, sgd_floor
from heterps_compile.runtime.sync.algorithms.local_steps import average, block_loss, steady_models
from heterps_compile.runtime.sync.algorithms.shadow_clock import Work, expected_ratio, run_foreground, run_shadow
from heterps_compile.runtime.sync.algorithms.top_k import select_exact, select_threshold
from heterps_compile.sync_rules.topk import TopK


@dataclass(frozen=True, slots=True)
class Line:
    """A number that is expected and measured.

    Attributes:
        rule: Whose.
        what: It is.
        expected: As it is told.
        measured: As it is told.
        holds: Whether the two agree.
        why: Where the expected one comes from, and how far off is allowed.
    """

    rule: str
    what: str
    expected: str
    measured: str
    holds: bool
    why: str

    @classmethod
    def near(cls, rule: str, what: str, expected: float, measured: float, within: float, why: str) -> "Line":
        """Return one that may be off by so much."""
        holds = abs(measured - expected) <= within
        return cls(rule, what, f"{expected:.6g}", f"{measured:.6g}", holds, why)

    @classmethod
    def fact(cls, rule: str, what: str, holds: bool, measured: str, why: str) -> "Line":
        """Return one that is true or not."""
        return cls(rule, what, "yes", measured, holds, why)


def top_k() -> Iterator[Line]:
    length = 1_000_000
    k = length // 100
    laws = {
        "Gaussian": torch.distributions.Normal(0.0, 1.0),
        "Laplace": torch.distributions.Laplace(0.0, 1.0),
        "t3": torch.distributions.StudentT(3.0),
    }
    torch.manual_seed(0)
    for name, law in laws.items():
        flat = law.sample((length,))
        found, best = select_threshold(flat, k), select_exact(flat, k)
        distinct = found.indices.unique().numel()
        yield Line.near("topk", f"{name}, 1 %: distinct entries", k, distinct, 0, "exactly k of 1,000,000")
        share = float(found.values.double().square().sum() / best.values.double().square().sum())
        why = "30 bisections leave (max - mean) / 2^30"
        yield Line(
            "topk", f"{name}, 1 %: energy of the exact choice", ">= 0.9999", f"{share:.7f}", share >= 0.9999, why
        )
    ties = torch.ones(1000)
    distinct = select_threshold(ties, 17).indices.unique().numel()
    yield Line.near("topk", "1,000 equal entries: distinct of 17", 17, distinct, 0, "lowest indices of a tie")
    gradient, residual = torch.randn(length), torch.randn(length)
    sent = send_with_feedback(gradient, residual, k, select_threshold)
    lost = (sent.selection.dense(length) + sent.residual - (gradient + residual)).abs().max().item()
    yield Line.near("topk", "sent + kept - input, largest", 0.0, lost, 0, "to the bit")
    yield from _bytes_between()


def _bytes_between() -> Iterator[Line]:
    machines, inside, length = 16, 4, 16_000
    tensors = list(torch.randn(machines * inside, length))
    dense = sum_dense(tensors, inside)
    why = "1 / (density x machines), counted message by message, 16 machines of 4"
    for density, said in ((0.01, "1 %"), (1 / 16, "1 / machines"), (0.25, "25 %")):
        sparse = sum_top_k(tensors, inside, TopK(density).kept, select_threshold)
        ratio = dense.between_bytes / sparse.between_bytes
        yield Line.near(
            "topk", f"bytes between machines, dense over {said}", 1 / (density * machines), ratio, 1e-12, why
        )


def layerwise_norms() -> Iterator[Line]:
    sizes, replicas = [3, 1000, 1, 77, 40_960], 7
    torch.manual_seed(0)
    weights, gradient = torch.randn(2, sum(sizes))

    def squares(flat: Tensor, count: int) -> Tensor:
        return torch.stack([squares_of_shard(flat, sizes, replica, count) for replica in range(count)]).sum(0)

    for name, ratios in (("LARS", lars_ratios), ("LAMB", lamb_ratios)):
        split, serial = (ratios(squares(weights, n), squares(gradient, n)) for n in (replicas, 1))
        off = ((split - serial) / serial).abs().max().item()
        what = f"{name}: rates of layers on 7 replicas, off serial by"
        yield Line("topk", what, "<= 1e-6", f"{off:.1e}", off <= 1e-6, "sums of squares in float64")


def adasum() -> Iterator[Line]:
    rows = torch.eye(6, 16, dtype=torch.float64)
    off = (combine_all(list(rows)) - rows.sum(0)).abs().max().item()
    yield Line.near("adasum", "6 orthogonal gradients, off their sum by", 0, off, 0, "the definition")
    off = (combine_all([rows[0]] * 6) - rows[0]).abs().max().item()
    yield Line.near("adasum", "6 equal gradients, off their mean by", 0, off, 1e-15, "the definition")
    whole, by_layer = (combine(torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0]), s) for s in (None, [1, 1]))
    same = whole.tolist() == [2, 0] and by_layer.tolist() == [1, 0]
    yield Line.fact("adasum", "orthogonal as a whole, parallel by layer", same, "yes" if same else "no", "by hand")
    torch.manual_seed(0)
    for rho, replicas in ((0.1, 64), (1.0, 8), (1.0, 6)):
        yield _projection(rho, replicas)
    start = torch.ones(4, dtype=torch.float64)
    summed = (start - 0.1 * torch.stack([start] * 64).sum(0))[0].item()
    combined = (start - 0.1 * combine_all([start] * 64))[0].item()
    yield Line.near("adasum", "quadratic, rate 0.1, 64: a step of the sum", -5.4, summed, 1e-12, "1 - 0.1 x 64")
    yield Line.near("adasum", "quadratic, rate 0.1, 64: a step of adasum", 0.9, combined, 1e-12, "1 - 0.1")


def _projection(rho: float, replicas: int, draws: int = 40, size: int = 20_000) -> Line:
    mu = torch.randn(size)
    mu /= mu.norm()
    scale = (1 / (rho * size)) ** 0.5
    seen = [
        torch.dot(combine_all([mu + scale * torch.randn(size) for _ in range(replicas)]), mu).item()
        for _ in range(draws)
    ]
    found = torch.tensor(seen, dtype=torch.float64)
    error = found.std().item() / draws**0.5
    expected = expected_projection(rho, replicas)
    law = "N (2 + rho) / (2 + N rho)" if replicas.bit_count() == 1 else "the same recursion on 4 with 2 folded in"
    # noise times noise is of order 1 / size^0.5, and a bias in second order: a part in a thousand
    within = 4 * error + 0.001 * expected
    return Line.near("adasum", f"projection, rho {rho:g}, N {replicas}", expected, found.mean().item(), within, law)


def shadow() -> Iterator[Line]:
    work = Work(1000, 0.010, 0.040, 5)
    ratio = run_foreground(work).time_s / run_shadow(work).time_s
    why = "1 + t_s / (k t_c), on a simulated clock"
    yield Line.near("shadow", "foreground over shadow, 10 ms, 40 ms, every 5", 1.80, ratio, 0.05 * 1.80, why)
    times = [run_shadow(Work(1000, 0.010, 0.040, every)).time_s for every in (20, 5, 1)]
    why = "a synchronisation that is due while one runs is passed over"
    yield Line.near("shadow", "time at every 1 over every 20", 1.0, times[2] / times[0], 1e-9, why)
    shared = Work(5000, 0.010, 0.020, 5, slowdown=1.0)
    ratio = run_foreground(shared).time_s / run_shadow(shared).time_s
    why = "loses: where it shares the processor, half of t_s is paid (1.40 with its own)"
    yield Line.near("shadow", "the same, 20 ms, one processor for both", expected_ratio(shared), ratio, 2e-3, why)


def local_steps() -> Iterator[Line]:
    q, blocks = 0.1, 5
    centres = torch.eye(blocks, dtype=torch.float64)
    model, last = torch.full((blocks,), 100.0, dtype=torch.float64), []
    for _ in range(20):
        last = []
        for centre in centres:
            model = centre + q * (model - centre)
            last.append(model)
    off = (torch.stack(last) - steady_models(centres, q)).abs().max().item()
    why = "x_m = (1 - q) sum q^j c_(m-j) / (1 - q^M), 20 cycles of 5"
    yield Line("local", "steady chain, off the formula by", "<= 1e-12", f"{off:.1e}", off <= 1e-12, why)
    weights = [(1 - q) * q**j / (1 - q**blocks) for j in range(blocks)]
    squares = sum(w * w for w in weights)
    models = torch.stack(last)
    why = "orthonormal centres, loss: half the squared distance, w_j = (1 - q) q^j / (1 - q^M): "
    own = ((1 - weights[0]) ** 2 + squares - weights[0] ** 2) / 2
    cases = (
        ("MM: a model a block", own, models, "((1 - w_0)^2 + w_1^2 + ...) / 2"),
        ("best single model", 0.4, centres.mean(0), "(1 - 1/M) / 2"),
        ("last averaged model", (1 + squares - 2 / blocks) / 2, last[-1], "(1 + sum of w_j^2 - 2/M) / 2"),
    )
    for what, expected, found, formula in cases:
        yield Line.near("local", what, expected, block_loss(found, centres), 1e-12, why + formula)
    yield from _clients()


def _clients() -> Iterator[Line]:
    dimensions, rate, steps = 20_000, 0.2, 4
    torch.manual_seed(0)
    for clients in (1, 4, 16):
        model = torch.zeros(dimensions, dtype=torch.float64)
        for _ in range(12):
            ends = []
            for _ in range(clients):
                mine = model
                for _ in range(steps):
                    mine = mine - rate * (mine + torch.randn(dimensions, dtype=torch.float64))
                ends.append(mine)
            model = average(ends)
        expected = rate / (2 - rate) / clients
        why = "rate / (2 - rate) / N of a noisy quadratic; 4 standard errors of 20,000 dimensions"
        within = 4 * expected * (2 / dimensions) ** 0.5
        measured = model.square().mean().item()
        yield Line.near("local", f"error of {clients} clients", expected, measured, within, why)


def adsaga() -> Iterator[Line]:
    problem = LeastSquares.drawn(512, 20, condition=28.6, noise=1.0, seed=0)
    found: dict[int, float] = {}
    for workers, published in ((1, 9000), (4, 9500), (16, 9500), (64, 13_000)):
        saga = AsyncSaga(problem.terms(), problem.start(), workers=workers, step=0.25)
        steps = (done for done, weights in enumerate(saga.run(25_000), 1) if problem.error(weights) < 1e-8)
        found[workers] = next(steps, math.inf)
        why = f"wanted; one draw, 10 %. n ln 1e8 = {512 * math.log(1e8):,.0f}, 1.37 times for 64"
        what = f"iterations to 1e-8, {workers} workers"
        yield Line.near("adsaga", what, published, found[workers], 0.1 * published, why)
    theory = (512 + 8 * 28.6) / (512 + 28.6)
    why = "(n + sqrt(m) kappa) / (n + kappa); one draw, 10 %"
    yield Line.near("adsaga", "64 workers over 1", theory, found[64] / found[1], 0.1 * theory, why)
    saga = AsyncSaga(problem.terms(), problem.start(), workers=1, step=0.25, variance_reduced=False)
    errors = [problem.error(weights) for weights in saga.run(9000)][1500:]
    floor = sgd_floor(problem, 0.25)
    why = "asynchronous SGD stalls at the fixed point of its second moment; 20 %"
    yield Line.near("adsaga", "SGD at the same step", floor, sum(errors) / len(errors), 0.2 * floor, why)
    saga = AsyncSaga(problem.terms(), problem.start(), workers=64, step=0.5)
    *_, end = saga.run(10_000)
    worse = not problem.error(end) < 1
    why = "loses: a step that one worker stands (13,800 iterations) is too long for 64"
    yield Line.fact("adsaga", "64 workers at twice the step diverge", worse, f"error {problem.error(end):.1g}", why)


def servers() -> Iterator[Line]:
    """Gradients of weights that are s steps old: on |x|^2 / 2, x <- x - rate x of s steps ago."""
    for staleness in (0, 1, 4, 16):
        low, high = 0.0, 3.0
        for _ in range(30):
            rate = (low + high) / 2
            low, high = (rate, high) if _settles(rate, staleness) else (low, rate)
        limit = 2 * math.sin(math.pi / (4 * staleness + 2))
        why = "2 sin(pi / (4 s + 2)), where a root of z^(s+1) = z^s - rate reaches length 1; simulated steps"
        what = f"staleness {staleness}: largest rate on a curvature of 1"
        yield Line.near("servers", what, limit, low, 0.01 * limit, why)


def _settles(rate: float, staleness: int) -> bool:
    """Whether the last of 2,000 steps for each step of staleness are shorter than those in the middle."""
    steps = 2000 * (staleness + 1)
    seen = [1.0] * (staleness + 1)
    sizes = []
    for _ in range(steps):
        seen.append(seen[-1] - rate * seen[-1 - staleness])
        sizes.append(abs(seen[-1]))
        if sizes[-1] > 1e6:
            return False
        del seen[0]
    middle, end = sizes[steps // 2 : 3 * steps // 4], sizes[3 * steps // 4 :]
    return max(end) < max(middle) or max(end) < 1e-12


LAWS = {
    "topk": top_k,
    "norms": layerwise_norms,
    "adasum": adasum,
    "shadow": shadow,
    "local": local_steps,
    "servers": servers,
    "adsaga": adsaga,
}
