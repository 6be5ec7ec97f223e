"""A practitioner serves a click model: what is the cheapest hardware that holds 2,000,000 samples/s, and does it pay?

Run it: ``python examples/practitioner.py``. It compiles a small model of its own, holds the plan against the same
model on GPUs alone, writes the stages to a folder, and runs them from there.
"""

import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import heterps_compile

FIELDS, ROWS, WIDTH, BATCH = 6, 50_000, 16, 1024
FLOOR = 2_000_000  # samples/s


class Clicks(nn.Module):
    """Scores ids [batch, fields]: one embedding table per field, then a tower of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH) for _ in range(FIELDS))
        self.tower = nn.Sequential(
            nn.Linear(FIELDS * WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, 1]."""
        embedded = [table(ids[:, field]) for field, table in enumerate(self.tables)]
        logits: Tensor = self.tower(torch.cat(embedded, dim=1))
        return logits


def main() -> None:
    """Compile, compare, save, load and run."""
    model, ids = Clicks().eval(), torch.randint(0, ROWS, (BATCH, FIELDS))
    compile_it = partial(heterps_compile.compile, model, (ids,), min_throughput=FLOOR, max_stages=2, method="exact")
    compiled = compile_it()
    print(compiled)

    gpus = compile_it(pins={"*": "v100"})
    ours, theirs = compiled.plan.price_per_million_samples, gpus.plan.price_per_million_samples
    print(f"\non v100 alone: {theirs:.3g} USD per million samples, {theirs / ours:.2f} times as much")

    with tempfile.TemporaryDirectory() as folder:
        compiled.save(Path(folder) / "clicks.heterps")
        loaded = heterps_compile.load(Path(folder) / "clicks.heterps")  # runs its code: load only folders of your own
        with torch.no_grad():
            difference = float((loaded.run(ids) - model(ids)).abs().max())
    print(f"the stages of the folder differ from the model by at most {difference:.1g}")


if __name__ == "__main__":
    main()
