"""Metrics over all samples of a validation."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.validation.metrics import MetricsOfSamples

SIZES = (4, 4, 3)


def batches() -> list[tuple[Tensor, dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(n, generator=generator), {"label": torch.randint(2, (n,), generator=generator)}) for n in SIZES]


def loss(outputs: Tensor, batch: Any) -> Tensor:
    return (outputs - batch["label"]).square().mean()


def computed(metrics: Any, *, of: MetricsOfSamples | None = None) -> dict[str, float]:
    made = of or MetricsOfSamples(loss, metrics)
    made.begin()
    for outputs, batch in batches():
        made.add(outputs, batch, len(outputs))
    return made.compute()


def test_means_are_weighted_by_samples_and_the_loss_is_always_there():
    found = computed(lambda outputs, batch: {"mean": outputs.mean(), "one": 1, "half": torch.tensor([0.5])})
    parts = batches()
    assert found["loss"] == sum(float(loss(*part)) * len(part[0]) for part in parts) / sum(SIZES)
    assert found["mean"] == sum(float(outputs.mean()) * len(outputs) for outputs, _ in parts) / sum(SIZES)
    assert (found["one"], found["half"]) == (1.0, 0.5)
    assert list(computed(None)) == ["loss"]


def each(outputs: Tensor, batch: Any) -> Tensor:
    return (outputs - batch["label"]).square()


def weight(batch: Any) -> Tensor:
    return 1 + 2 * batch["label"]


def test_losses_by_name_are_metrics_beside_their_sum():
    found = computed(None, of=MetricsOfSamples(lambda o, b: {"fit": loss(o, b), "loss": o.mean()}, None))
    assert list(found) == ["loss", "loss/fit", "loss/loss"]
    assert found["loss"] == pytest.approx(found["loss/fit"] + found["loss/loss"], rel=1e-6)
    assert found["loss/fit"] == computed(None)["loss"]


def test_where_samples_have_weights_every_mean_is_weighted():
    from torchmetrics.classification import BinaryAccuracy  # noqa: PLC0415 - seconds, and only here

    right = BinaryAccuracy()

    def metrics(outputs, batch):
        right.update(outputs, batch["label"])
        return {"positive": (outputs > 0.5).float(), "right": right}

    made = MetricsOfSamples(lambda o, b: {"fit": each(o, b)}, metrics, weight)
    first, second = computed(None, of=made), computed(None, of=made)
    assert first == second
    outputs, labels = (torch.cat(parts) for parts in zip(*((o, b["label"]) for o, b in batches()), strict=True))
    weights = weight({"label": labels}).double()
    fit = float((weights * (outputs - labels).square()).sum() / weights.sum())
    assert first["loss"] == first["loss/fit"] == pytest.approx(fit, rel=1e-6)
    assert first["positive"] == pytest.approx(float(weights[outputs > 0.5].sum() / weights.sum()))
    assert first["right"] == float(BinaryAccuracy()(outputs, labels)), "an object weights samples itself"


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (
            MetricsOfSamples(each, lambda o, b: {"m": o.mean()}, weight),
            "gives a tensor of shape [] for 4 samples as the metric 'm', and samples have weights; give one value for",
        ),
        (MetricsOfSamples(each, lambda o, b: {"m": 0.5}, weight), "gives a float for 4 samples as the metric 'm'"),
        (MetricsOfSamples(loss, None, weight), "the loss gives a tensor of shape [] for 4 samples, and the training"),
        (
            MetricsOfSamples(each, None, lambda b: torch.zeros(len(b["label"]))),
            "0 for each of the 11 validation samples",
        ),
        (
            MetricsOfSamples(each, None, lambda b: torch.full((len(b["label"]),), float(len(b["label"]) - 3.5))),
            "gives -0.5 for sample 8 of the validation data; a weight",
        ),
        (
            MetricsOfSamples(lambda o, b: {"fit": loss(o, b)}, lambda o, b: {"loss/fit": 1}),
            "has a metric 'loss/fit', which is what loss() gives over the validation data",
        ),
        (
            MetricsOfSamples(lambda o, b: {f"of {len(o)}": loss(o, b)}, None),
            "the loss gives 'of 3' here, and 'of 4' before; give the same names for every micro-batch",
        ),
    ],
)
def test_what_is_wrong_with_a_loss_or_a_weight_in_a_validation_is_said(of, said):
    with pytest.raises(RunError) as caught:
        computed(None, of=of)
    assert said in str(caught.value)


def test_objects_of_torchmetrics_see_every_sample_once_in_every_validation():
    from torchmetrics.classification import BinaryAccuracy, BinaryAUROC  # noqa: PLC0415 - seconds, and only here

    auc, accuracy = BinaryAUROC(), BinaryAccuracy()

    def metrics(outputs, batch):
        auc.update(outputs, batch["label"])
        accuracy.update(outputs, batch["label"])
        return {"auc": auc, "accuracy": accuracy}

    made = MetricsOfSamples(loss, metrics)
    first, second = computed(metrics, of=made), computed(metrics, of=made)
    outputs = torch.cat([outputs for outputs, _ in batches()])
    labels = torch.cat([batch["label"] for _, batch in batches()])
    assert first == second
    assert first["auc"] == float(BinaryAUROC()(outputs, labels))
    assert first["accuracy"] == float(BinaryAccuracy()(outputs, labels))


class Spread:
    """A metric of a user's own."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seen: list[float] = []

    def update(self, outputs: Tensor) -> None:
        self.seen += outputs.tolist()

    def compute(self) -> float:
        return max(self.seen) - min(self.seen)


def changing():
    names = iter("abc")
    return lambda outputs, batch: {next(names): 1.0}


def in_turns(*values):
    given = iter(values)
    return lambda outputs, batch: {"m": next(given)}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (lambda outputs, batch: 3, "gave a int; it must give a dict of metrics"),
        (lambda outputs, batch: {"a\x1b[2J": 1}, r"names a metric 'a\x1b[2J'; a name has"),
        (lambda outputs, batch: {"loss": 1}, "has a metric 'loss', which is what loss() gives"),
        (lambda outputs, batch: {"m": outputs}, "a Tensor of shape [4] as the metric 'm'; it must be one number"),
        (lambda outputs, batch: {"m": None}, "a NoneType as the metric 'm'; it must be a number, a tensor of one"),
        (lambda outputs, batch: {"m": float("nan")}, "the metric 'm' is nan; look at the validation data"),
        (changing(), "gives 'b' here and gave 'a' before; give the same names for every batch"),
        (lambda outputs, batch: {"m": Spread()}, "gives a new object as 'm' for every batch"),
        (in_turns(1.0, Spread()), "the metric 'm' is an object here and was a number before"),
        (in_turns(Spread(), 1.0), "the metric 'm' is a number here and was an object before"),
    ],
)
def test_what_is_no_metric_is_refused_by_name(metrics, said):
    with pytest.raises(RunError) as caught:
        computed(metrics)
    assert said in str(caught.value)


def test_an_object_that_gives_no_number_is_refused():
    spread = Spread()
    spread.compute = lambda: torch.ones(2)  # type: ignore[assignment,return-value]

    def metrics(outputs, batch):
        spread.update(outputs)
        return {"spread": spread}

    with pytest.raises(RunError, match=r"spread.compute.*Tensor.*\[2\].*'spread'"):
        computed(metrics)


def test_a_loss_that_is_no_number_is_refused():
    with pytest.raises(RunError, match=r"'loss'.*nan"):
        MetricsOfSamples(lambda outputs, batch: outputs.mean() * float("nan"), None).add(torch.ones(2), {}, 2)


def test_metrics_in_a_group_of_processes_wait_for_nobody(monkeypatch):
    """Where there is a group, torchmetrics waits for all of it in compute()."""
    import torch.distributed as dist  # noqa: PLC0415 - beside its one use
    from torchmetrics.classification import BinaryAUROC  # noqa: PLC0415 - seconds, and only here

    monkeypatch.setattr(dist, "barrier", lambda *_, **__: pytest.fail("it waits for others"))
    auc = BinaryAUROC()

    def metrics(outputs, batch):
        auc.update(outputs, batch["label"])
        return {"auc": auc, "groups": float(dist.is_initialized())}

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = computed(metrics)
        assert dist.is_initialized()
        auc.update(torch.rand(4), torch.tensor([0, 1, 0, 1]))
        with pytest.raises(pytest.fail.Exception, match="waits"):
            auc.compute()
    finally:
        dist.destroy_process_group()
    assert found["groups"] == 0.0
