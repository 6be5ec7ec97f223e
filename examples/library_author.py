"""A library author compiles inside a product: progress on a bar, a button that cancels, faults as values, no output.

Run it: ``python examples/library_author.py``. The product here is ``deploy()``; what it shows to its
own user comes from typed values, and nothing from text that was printed.
"""

import threading

import torch
from torch import nn

import heterps_compile
from heterps_compile.errors import CancelledError
from heterps_compile.progress import Progress


def bar(progress: Progress) -> None:
    """Show how far the compilation is: ``[####------] place-layers``."""
    print(
        f"[{'#' * progress.done}{'-' * (progress.total - progress.done)}] {progress.step} {progress.message}".rstrip()
    )


def deploy(model: nn.Module, sample: torch.Tensor, cancel: threading.Event, floor: float) -> dict[str, object] | str:
    """Return what the product stores of a plan, or one sentence for its user.

    Args:
        model: What is deployed.
        sample: One batch of its input.
        cancel: Set by the product's button, from any thread.
        floor: Samples/s that the deployment has to reach.
    """
    try:
        compiled = heterps_compile.compile(
            model, (sample,), method="exact", min_throughput=floor, on_progress=bar, cancel=cancel
        )
    except CancelledError:
        return "cancelled; nothing was written"
    except heterps_compile.HeterpsError as error:
        return str(error)
    plan = compiled.plan
    stages = {stage.index: f"{stage.replicas} x {stage.device}" for stage in plan.stages}
    return {"stages": stages, "price_per_hour": plan.price_per_hour, "notes": plan.notes}


def main() -> None:
    """Deploy a model; ask for what no pool can do; press the button."""
    model, sample = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)), torch.randn(128, 64)
    button = threading.Event()
    print(deploy(model, sample, button, floor=10_000))
    print(deploy(model, sample, button, floor=1e15))
    button.set()
    print(deploy(model, sample, button, floor=10_000))


if __name__ == "__main__":
    main()
