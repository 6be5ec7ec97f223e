"""A reviewer of a pull request asks what a new plan changes, by a rule: no price up by more than 5 %.

Run it: ``python examples/reviewer.py``. The author's part makes two plans, before and after the price of an a10g was
doubled; the reviewer's part, ``review()``, reads the two JSON files alone, and needs no torch.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import heterps_compile
from heterps_compile.plan_diff.formats import diff_text

LIMIT_PERCENT = 5.0


def review(old: Path, new: Path) -> bool:
    """Tell what changed from one ``plan.json`` to another, and whether the rule lets it pass."""
    changes = heterps_compile.diff(old, new)
    print(diff_text(changes))
    (price,) = (number for number in changes.numbers if number.name == "price")
    return price.percent <= LIMIT_PERCENT


def write_plans(folder: Path) -> tuple[Path, Path]:
    """Compile a small model for a pool and for the same with a dearer a10g; return the two plan files."""
    import torch  # noqa: PLC0415 - of the author's part alone

    pool = heterps_compile.load_cluster("cloud-mix")
    dearer = [
        replace(kind, price_per_hour=kind.price_per_hour * (1 + (kind.name == "a10g"))) for kind in pool.device_types
    ]
    model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096))
    for name, cluster in {"old": pool, "new": replace(pool, device_types=tuple(dearer))}.items():
        compiled = heterps_compile.compile(
            model, (torch.randn(256, 256),), cluster=cluster, method="exact", min_throughput=1_000_000
        )
        compiled.save(folder / name)
    return folder / "old/plan.json", folder / "new/plan.json"


def main() -> None:
    """Write two plans and review them."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = write_plans(Path(folder))
        print("passes" if review(old, new) else f"refused: the price rises by more than {LIMIT_PERCENT:g} %")


if __name__ == "__main__":
    main()
