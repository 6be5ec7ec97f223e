"""A model that counts: each step of SGD takes one from the row of every sample of its batch.

So after a run of so many epochs every row is at minus so many, or a sample was trained on twice or left out.
"""

import tempfile
from pathlib import Path

from safetensors.torch import load_file

from heterps_compile.runtime.servers.saved_tables import export_tables

MODEL = """
import torch
from torch import nn

class Counts(nn.Module):
    \"\"\"Each step of SGD takes one from the row of every sample of its batch.\"\"\"
    def __init__(self):
        super().__init__()
        self.rows, self.one = nn.Embedding(1536, 1), nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.rows.weight)
        nn.init.ones_(self.one.weight)
        self.one.weight.requires_grad = False

    def forward(self, sample):
        return self.one(self.rows(sample))

if __name__ == "__main__":
    import sys
    import pyarrow as pa, pyarrow.parquet as pq
    from heterps_compile import compile
    pq.write_table(pa.table({"sample": list(range(1536))}), "x.parquet")
    for stages, name in ((2, "two"), (1, "one")):
        if name not in (sys.argv[1:] or (name,)):
            continue
        compile(
            Counts(), (torch.arange(16),), mode="training", min_stages=stages, max_stages=stages
        ).save(name)
"""
TRAIN = """
import os, time, torch

def loss(outputs, batch):
    time.sleep(0.3 if os.path.exists(f"{HOLD}-slow") else 0.01)
    while os.path.exists(HOLD):
        time.sleep(0.01)
    return outputs.mean()

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=32.0)
"""


def times_seen(checkpoint: Path) -> set[int]:
    """Return how often samples were trained on, by the rows of a checkpoint, be it of stages or of servers."""
    files = sorted(checkpoint.glob("weights-*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        if (checkpoint / "servers").is_dir():
            files = [Path(folder) / "tables.safetensors"]
            export_tables(checkpoint / "servers", files[0])
        rows = next(found["rows.weight"] for path in files if "rows.weight" in (found := load_file(path)))
    counts = [-row for row in rows.flatten().tolist()]
    assert all(count == int(count) for count in counts), counts
    return set(map(int, counts))
