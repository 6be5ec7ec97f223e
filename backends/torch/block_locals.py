"""Local variables of a written forward for the blocks whose tensors it reads more than once.

A tensor's dotted name is looked up block by block, some half a microsecond each: a stage of a transformer spent a
twentieth of its time so::

    layer_0 = self.encoder.layer[0]                 the innermost block with a number
    query = layer_0.attention.self.query            a block that several reads go to
    linear = F.linear(hidden, query.weight, query.bias)

Left out: how a name is written as source (``naming.py``).
"""

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from heterps_compile.backends.local_names import LocalNames

from .naming import attribute, is_behind_a_tensor, is_index, step

_Path = tuple[str, ...]


class BlockLocals:
    """Says how each read of a tensor is written, and which locals have to be assigned before it."""

    def __init__(self, reads: Sequence[str], held: Container[str], names: LocalNames) -> None:
        """Work out which blocks get a local.

        Args:
            reads: The dotted name of every tensor, as often as the forward reads it.
            held: Names of all tensors of the stage.
            names: Gives the locals their names.
        """
        self._held, self._names = held, names
        self._reads = Counter(prefix for name in reads for prefix in self._worthy(name))
        self._locals: dict[_Path, str] = {}

    def write(self, name: str) -> str:
        """Write how a tensor is read, from the innermost block that has a local by now."""
        path = tuple(name.split("."))
        for length in range(len(path) - 1, 0, -1):
            if path[:length] in self._locals:
                return self._locals[path[:length]] + "".join(map(step, path[length:]))
        return attribute(name, self._held)

    def assign(self, name: str) -> Iterator[str]:
        """Yield the assignments that the next read of a tensor wants before it."""
        for path in self._worthy(name):
            if self._reads[path] > 1 and path not in self._locals:
                written = self.write(".".join(path))
                self._locals[path] = local = self._names.new("_".join(path[-2:]) if is_index(path[-1]) else path[-1])
                yield f"{local} = {written}"

    def _worthy(self, name: str) -> Iterator[_Path]:
        """Yield the blocks on the way to a tensor that are worth a local, the outer one first."""
        *path, _ = name.split(".")
        if is_behind_a_tensor(name, self._held):
            return
        numbered = max((place for place, atom in enumerate(path, 1) if is_index(atom)), default=0)
        for length in sorted({numbered, len(path)}):
            if length > 1:  # else a local saves nothing
                yield tuple(path[:length])
