"""Who waits for whom: alone means alone, beside means beside."""

import threading
from collections.abc import Callable

from heterps_compile.process_state import alone, beside

SOON_S = 20.0
ALL = 100  # more than all who go beside each other


def run(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert not any(thread.is_alive() for thread in threads)


def test_two_go_beside_each_other():
    met = threading.Barrier(2, timeout=SOON_S)

    def work() -> None:
        with beside():
            met.wait()

    run(work, work)


def test_only_one_is_alone_and_nobody_is_beside_it():
    inside, counted = 0, threading.Lock()

    def step(kind: Callable, weight: int) -> Callable[[], None]:
        def work() -> None:
            nonlocal inside
            for _ in range(200):
                with kind():
                    with counted:
                        inside += weight
                        wrong.extend([inside] if (inside != weight if kind is alone else inside >= ALL) else [])
                    with counted:
                        inside -= weight

        return work

    wrong: list[int] = []
    run(step(alone, ALL), step(alone, ALL), step(beside, 1), step(beside, 1))
    assert (wrong, inside) == ([], 0)


def test_blocks_may_be_nested_either_way():
    with alone(), beside(), alone():
        pass
    with beside(), beside(), alone(), beside():
        pass
    done = threading.Event()

    def after() -> None:
        with alone():
            done.set()

    run(after)
    assert done.is_set()


def test_an_error_inside_lets_the_others_go_on():
    for kind in (alone, beside):
        try:
            with kind():
                raise ValueError
        except ValueError:
            pass

    def after() -> None:
        with alone():
            pass

    run(after)
