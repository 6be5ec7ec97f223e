"""What an installation holds, and how long `diff` takes in it: the core beside everything, an environment each.

python tools/bench_install.py [--extras "" all] [--rounds 9]

An environment has the pinned versions (constraints.txt); pip and setuptools are not counted. Rounds alternate, so that
both meet the same load; what is printed is the median, and its ratio to the first.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def install(folder: Path, extras: str) -> Path:
    """Make an environment with some extras; return its interpreter. Sources are copied: pip leaves notes in them."""
    python, tree = folder / "bin" / "python", folder / "tree"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "demo-out", "tests")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=skipped)
    what = f"{tree}[{extras}]" if extras else str(tree)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), what], check=True)
    return python


def held(python: Path) -> tuple[int, int]:
    """Return how many packages an environment has, and their bytes."""
    listing = [str(python), "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"]
    found = json.loads(subprocess.run(listing, check=True, capture_output=True, text=True).stdout)
    packages = [row for row in found if row["name"] not in OWN]
    site = Path(subprocess.run([str(python), "-c", SITE], check=True, capture_output=True, text=True).stdout.strip())
    files = (path for path in site.rglob("*") if path.is_file() and not path.is_symlink())
    counted = (path for path in files if not path.relative_to(site).parts[0].startswith(OWN))
    return len(packages), sum(path.stat().st_size for path in counted)


def diff_s(python: Path, plans: tuple[str, str]) -> float:
    """Time one diff of two plans."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    began = time.perf_counter()
    diff = [str(python), "-m", "heterps_compile", "diff", *plans]
    code = subprocess.run(diff, env=environment, check=False, capture_output=True).returncode
    if code not in (0, 1):
        raise SystemExit(f"diff ended with {code}")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="*", default=["", "all"], help='one environment each, "" for the core')
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    plan = str(ROOT / "tests" / "golden" / "plan" / "plan.json")
    with tempfile.TemporaryDirectory() as folder:
        pythons = [install(Path(folder, str(number)), extras) for number, extras in enumerate(given.extras)]
        times: list[list[float]] = [[] for _ in pythons]
        for _ in range(given.rounds):
            for python, taken in zip(pythons, times, strict=True):
                taken.append(diff_s(python, (plan, plan)))
        first = statistics.median(times[0])
        print("extras  packages     size    diff  ratio")
        for extras, python, taken in zip(given.extras, pythons, times, strict=True):
            count, size = held(python)
            median = statistics.median(taken)
            print(f"{extras or '-':6}  {count:8}  {size / 1e6:4.0f} MB  {median:.2f} s  {median / first:5.2f}")


if __name__ == "__main__":
    main()
