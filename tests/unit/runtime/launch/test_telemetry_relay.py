"""What a rank of another machine tells reaches the files that rank 0 follows."""

import threading
from contextlib import closing

from torch.distributed import HashStore

from heterps_compile.runtime.launch.telemetry_relay import TelemetryCollector, TelemetrySender


def test_lines_are_carried_as_they_were_written(tmp_path):
    """Wherever a chunk ends."""
    store, here, there = HashStore(), tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    with closing(TelemetrySender(store, there, 2, chunk_bytes=7)), (there / "rank-0002.jsonl").open("w") as file:
        for step in range(9):
            file.write(f'{{"step": {step}}}\n')
    collector = TelemetryCollector(store, here, [2])
    collector.wait_for_last()
    collector.collect()
    assert (here / "rank-0002.jsonl").read_text() == (there / "rank-0002.jsonl").read_text()
    assert not any(store.check([f"told/2/{number}"]) for number in range(100))  # the store keeps none of it


def test_lines_come_while_the_run_goes_on(tmp_path):
    store, here, there = HashStore(), tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    file = there / "rank-0001.jsonl"
    collector = TelemetryCollector(store, here, [1])
    with closing(TelemetrySender(store, there, 1)):
        for lines in ("one\n", "one\ntwo\n"):
            file.write_text(lines)
            came = threading.Event()
            for _ in range(300):
                collector.collect()
                if (here / file.name).exists() and (here / file.name).read_text() == lines:
                    came.set()
                    break
                came.wait(0.1)
            assert came.is_set()
