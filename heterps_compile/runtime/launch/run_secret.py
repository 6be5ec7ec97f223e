"""The secret of a run: who knows it may talk to the run's own store.

Left out: the store (``store_client.py``); how ranks of several machines learn the secret (``env_rank.py``).
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_bytes

from .channel import SECRET_BYTES
from .run_folder import write_private, writing_temporary_files
from .store_client import RunStore, StorePlace, connect_store, host_store

_SECRET_NAME = "secret"  # noqa: S105 - the name of its file


def new_secret() -> bytes:
    """Return a secret that cannot be guessed."""
    return token_bytes(SECRET_BYTES)


def write_secret(folder: Path, secret: bytes) -> None:
    """Write the secret of a run into its folder, for this user's processes."""
    write_private(folder / _SECRET_NAME, secret.hex())


def read_secret(folder: Path) -> bytes:
    """Read the secret of a run.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is not a secret.
    """
    secret = bytes.fromhex((folder / _SECRET_NAME).read_text("ascii"))
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes")
    return secret


@contextmanager
def hosting_store(folder: Path) -> Iterator[RunStore]:
    """Host the store of a launcher's run in its folder while a block runs; yield a connection to it."""
    place = StorePlace(new_secret(), folder=folder)
    with writing_temporary_files():
        write_secret(folder, place.secret)
    with closing(host_store(place)):
        yield connect_store(place, "the launcher")
