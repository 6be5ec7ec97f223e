"""Messages between two processes that know the same secret, over a stream socket on which anybody may write.

::

    server    magic, run, nonce s  -------->                        who answers must know the secret
              <--------  nonce c, HMAC(secret, "client", run, s, c)
    server    HMAC(secret, "server", run, s, c)  -------->          so must who asks
              <-------->  length, content, HMAC(key of this direction, number of the message, content)

The keys of the two directions are made from secret and nonces, and messages are numbered: one that is changed, left
out, repeated, sent back, or comes from another connection or run has another HMAC-SHA-256 and is refused. Messages can
be read on the way; they hold no secret.

Left out: what messages say (``store_server.py``), who has the secret (``run_secret.py``).
"""

import hmac
import os
import socket
import struct
from hashlib import sha256

MAGIC = b"heterps1"
NONCE_BYTES = 16
TAG_BYTES = 32
RUN_BYTES = 8
HELLO_BYTES = len(MAGIC) + RUN_BYTES + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + TAG_BYTES
SECRET_BYTES = 32

MOST_BYTES = 2**26
"""The longest message; what a rank tells of its steps travels in parts of 1 MiB."""

_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")


class StrangerError(Exception):
    """Who is on the other side does not know the secret, or what came was changed on the way."""


class OtherRunError(Exception):
    """Another run listens there."""


def run_mark(run: str) -> bytes:
    """Return what tells runs apart that have the same secret, one after the other."""
    return sha256(run.encode()).digest()[:RUN_BYTES]


class Sealed:
    """The messages of one connection, once both sides have shown that they know the secret."""

    def __init__(self, secret: bytes, transcript: bytes, *, is_server: bool) -> None:
        """Make the keys of both directions."""
        keys = [_tag(secret, label, transcript) for label in (b"to client", b"to server")]
        self._out_key, self._in_key = keys if is_server else reversed(keys)
        self._sent = self._received = 0
        self._buffer = bytearray()

    def seal(self, content: bytes) -> bytes:
        """Return the bytes that carry a message."""
        number = _NUMBER.pack(self._sent)
        self._sent += 1
        return _LENGTH.pack(len(content)) + content + _tag(self._out_key, number, content)

    def feed(self, came: bytes) -> None:
        """Take in what came."""
        self._buffer += came

    def next_message(self) -> bytes | None:
        """Return the next message; None before all of it has come.

        Raises:
            StrangerError: where it is none of the other side's, or longer than any.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MOST_BYTES:
            raise StrangerError(f"a message of {length} bytes; the longest has {MOST_BYTES}")
        end = _LENGTH.size + length
        if len(self._buffer) < end + TAG_BYTES:
            return None
        content, tag = bytes(self._buffer[_LENGTH.size : end]), bytes(self._buffer[end : end + TAG_BYTES])
        if not hmac.compare_digest(tag, _tag(self._in_key, _NUMBER.pack(self._received), content)):
            raise StrangerError("a message that was changed on the way, or is none of this connection")
        self._received += 1
        del self._buffer[: end + TAG_BYTES]
        return content


class Door:
    """What a server has of a connection before the other side has shown that it knows the secret.

    Attributes:
        hello: What it sends first.
    """

    def __init__(self, secret: bytes, run: bytes) -> None:
        self._secret, self._run, self._nonce = secret, run, os.urandom(NONCE_BYTES)
        self.hello = MAGIC + run + self._nonce
        self._came = bytearray()

    @property
    def has_heard(self) -> bool:
        """Tell whether anything came: who only looks whether somebody listens sends nothing."""
        return bool(self._came)

    @property
    def missing_bytes(self) -> int:
        """Return how many bytes of the answer have not come."""
        return ANSWER_BYTES - len(self._came)

    def feed(self, came: bytes) -> tuple[bytes, Sealed] | None:
        """Take in a part of the answer; give the last bytes of the greeting and the connection, once it is whole.

        Raises:
            StrangerError: where the other side does not know the secret.
        """
        self._came += came
        if self.missing_bytes > 0:
            return None
        nonce, tag = bytes(self._came[:NONCE_BYTES]), bytes(self._came[NONCE_BYTES:])
        transcript = self._run + self._nonce + nonce
        if not hmac.compare_digest(tag, _tag(self._secret, b"client", transcript)):
            raise StrangerError("it does not know the secret of the run")
        return _tag(self._secret, b"server", transcript), Sealed(self._secret, transcript, is_server=True)


def enter(line: socket.socket, secret: bytes, run: bytes) -> Sealed:
    """Greet a server.

    Raises:
        OtherRunError: where it is of another run of the same ranks.
        StrangerError: where it does not know the secret.
        OSError: where the connection breaks or takes too long.
    """
    hello = read_exactly(line, HELLO_BYTES)
    if not hello.startswith(MAGIC):
        raise StrangerError("what listens there is no store of a run, or one of another version")
    if hello[len(MAGIC) : -NONCE_BYTES] != run:
        raise OtherRunError
    nonce = os.urandom(NONCE_BYTES)
    transcript = run + hello[-NONCE_BYTES:] + nonce
    line.sendall(nonce + _tag(secret, b"client", transcript))
    try:
        tag = read_exactly(line, TAG_BYTES)
    except ConnectionError as error:
        raise StrangerError("it was turned away: the two do not have the same secret") from error
    if not hmac.compare_digest(tag, _tag(secret, b"server", transcript)):
        raise StrangerError("what listens there does not know the secret of the run")
    return Sealed(secret, transcript, is_server=False)


def read_exactly(line: socket.socket, size: int) -> bytes:
    """Read so many bytes.

    Raises:
        OSError: where the connection breaks or takes too long.
    """
    content = b""
    while len(content) < size:
        part = line.recv(size - len(content))
        if not part:
            raise ConnectionResetError("the connection was closed by the other side")
        content += part
    return content


def _tag(key: bytes, label: bytes, content: bytes) -> bytes:
    return hmac.digest(key, label + b"\0" + content, "sha256")
