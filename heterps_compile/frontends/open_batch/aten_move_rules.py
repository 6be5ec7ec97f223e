"""The rules of PyTorch's ops that move elements, or give them another shape.

Left out: ops that compute with elements (:mod:`.aten_compute_rules`).
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import fx

from .call_view import CallView
from .program_edits import CountSamples, SetArgument, SetSize
from .samples import Samples, normal

_LONG = 2**63 - 1  # no axis is that long: to the end


def permute(call: CallView) -> Samples | None:
    """Put the axes into the order of ``dims``."""
    return _ordered(call, call.axes("dims", call.rank(0)) or [])


def transpose(call: CallView) -> Samples | None:
    """Let two axes change places."""
    order = list(range(call.rank(0)))
    names = ("dim0", "dim1") if call.has("dim0") else ("axis0", "axis1")
    one, other = (call.axis(name) for name in names)
    order[one], order[other] = other, one
    return _ordered(call, order)


def matrix_transpose(call: CallView) -> Samples | None:
    """Let the last two axes change places."""
    order = list(range(call.rank(0)))
    return _ordered(call, [*order[:-2], *order[-2:][::-1]])


def move_axes(call: CallView) -> Samples | None:
    """Put some axes elsewhere; the others keep their order."""
    rank = call.rank(0)
    source, target = call.axes("source", rank) or [], call.axes("destination", rank) or []
    rest = (axis for axis in range(rank) if axis not in source)
    placed = dict(zip(target, source, strict=True))
    return _ordered(call, [placed[axis] if axis in placed else next(rest) for axis in range(rank)])


def _ordered(call: CallView, order: Sequence[int]) -> Samples | None:
    samples = call.only(0)
    return None if samples is None else samples.at(list(order).index(samples.axis))


def reshape(call: CallView) -> Samples | None:
    """Give the elements another shape; what says the batch in it becomes -1."""
    samples = call.only(0)
    if samples is None:
        return None
    name = "size" if call.has("size") else "shape"
    if call.has("dtype"):
        call.refuse("it takes the bytes of elements for elements of another data type")
    made, given = call.out_shape, list(call.argument(name))
    found = call.placed(samples, call.shape(0), made)
    wanted = [
        -1 if place == found.axis else dim if isinstance(dim, int) else said
        for place, (dim, said) in enumerate(zip(made, given, strict=True))
    ]
    if wanted.count(-1) > 1:
        if found.at(0) != samples.at(0):
            call.refuse("its shape leaves two dimensions open, the batch and a dynamic one")
        call.edits.append(SetSize(call.node, name, wanted, found.axis, call.operands[0][2], samples.axis))
    elif any(w is not g and w != g for w, g in zip(wanted, given, strict=True)):
        call.edits.append(SetArgument(call.node, name, wanted))
    return found


def as_reshape(call: CallView) -> Samples | None:
    """Give the elements another shape, one that is written down."""
    samples = call.only(0)
    return None if samples is None else call.as_reshape(samples)


def flatten(call: CallView) -> Samples | None:
    """Make one axis of some."""
    samples = call.only(0)
    if samples is None:
        return None
    first, last = call.axis("start_dim"), call.axis("end_dim")
    shape = call.shape(0)
    if samples.axis < first:
        return samples
    if samples.axis > last:
        return samples.at(samples.axis - (last - first))
    found = call.joined(samples, shape, first, last + 1).at(first)
    is_better = not call.is_written and call.is_better_written(found, samples, shape, call.out_shape)
    return call.as_reshape(samples) if is_better else found


def squeeze(call: CallView) -> Samples | None:
    """Drop axes of length 1."""
    samples = call.only(0)
    if samples is None:
        return None
    axes = call.axes("dim", call.rank(0)) if call.has("dim") else None
    if axes is None or samples.axis in axes:
        return call.as_reshape(samples)
    shape = call.shape(0)
    return samples.at(samples.axis - sum(a < samples.axis and shape[a] == 1 for a in set(axes)))


def unsqueeze(call: CallView) -> Samples | None:
    """Add an axis of length 1."""
    samples = call.only(0)
    if samples is None:
        return None
    added = normal(int(call.argument("dim")), call.rank(0) + 1)
    found = samples.at(samples.axis + (added <= samples.axis))
    # rows of the samples may become a dimension by themselves again
    return found if samples.per_sample == 1 or found.axis == 0 else call.as_reshape(samples)


def concat(call: CallView) -> Samples | None:
    """Join along another axis; what is the same for all samples is repeated for each."""
    if len({call.rank(i) for i in call.given}) > 1:
        call.refuse("it joins values of several ranks")
    return call.beside(call.given, call.axis(), "it joins values along the batch")


def stack(call: CallView) -> Samples | None:
    """Put values side by side, along an axis of their own."""
    axis = normal(int(call.argument("dim")), call.rank(0) + 1)
    samples = call.beside(call.given, -1, "")
    return None if samples is None else samples.at(samples.axis + (axis <= samples.axis))


def split(call: CallView) -> Samples | None:
    """Cut along another axis."""
    return call.apart(call.only(0), {call.axis()}, "it cuts along the batch")


def unbind(call: CallView) -> Samples | None:
    """Take every row along another axis by itself."""
    samples = split(call)
    return None if samples is None else samples.at(samples.axis - (call.axis() < samples.axis))


def slice_(call: CallView) -> Samples | None:
    """Take a part along another axis, or all of the batch."""
    samples = call.only(0)
    if samples is None or call.axis() != samples.axis:
        return samples
    start, end, step = (call.argument(name) for name in ("start", "end", "step"))
    length = call.fixed * samples.per_sample
    is_all = start in (None, 0, -length) and (end is None or (isinstance(end, int) and end >= length)) and step == 1
    if not is_all:
        call.refuse("it takes a part of the batch")
    if start not in (None, 0):
        call.edits.append(SetArgument(call.node, "start", 0))
    if end is not None and end < _LONG:
        call.edits.append(SetArgument(call.node, "end", _LONG))
    return samples


def select(call: CallView) -> Samples | None:
    """Take one row along another axis, or the one sample that there is."""
    samples, axis = call.only(0), call.axis()
    if samples is None:
        return None
    if samples.axis == axis:
        if call.fixed * samples.per_sample != 1:
            call.refuse("it picks samples out of the batch")
        return call.as_reshape(samples)
    return samples.at(samples.axis - (axis < samples.axis))


def index_select(call: CallView) -> Samples | None:
    """Take some rows along another axis, or at places of samples from a table for all."""
    return call.looked_up(0, 1, call.axis())


def gather(call: CallView) -> Samples | None:
    """Look up, or write, elements at the places of the same sample."""
    return call.beside(call.given, call.axis(), "it looks up, or writes, along the batch")


def index(call: CallView) -> Samples | None:
    """Look up entries at places that are the same for all samples, or at places of samples in a table for all.

    Where the batch is fixed at 1, an index that is 0 for that one sample becomes the number of each sample.
    """
    indices: list[Any] = list(call.argument("indices"))
    table, looked = call.samples(0), call.positions("indices")
    given = [axis for axis, one in enumerate(indices) if isinstance(one, fx.Node)]
    if any(call.operands[i][2].meta["val"].dtype.is_floating_point for i in looked):
        call.refuse("its indices are no whole numbers")
    if any(str(call.operands[i][2].meta["val"].dtype) in ("torch.bool", "torch.uint8") for i in looked):
        call.refuse("what it makes has a size that depends on a mask")
    block = max(call.rank(i) for i in looked)
    is_together = given == list(range(given[0], given[-1] + 1))
    first = given[0] if is_together else 0
    found = call.aligned(looked)
    if table is None:
        return None if found is None else found.at(first + block + found.axis)
    if table.axis not in given:
        if found is not None:
            call.refuse("it looks up places of each sample in a table of each, which pairs each with each")
        kept = [axis for axis in range(call.rank(0)) if axis not in given]
        place = kept.index(table.axis)
        return table.at(place + block if place >= first or not is_together else place)
    position = looked[given.index(table.axis)]
    numbers = call.constant(call.operands[position][2])
    is_zero = numbers is not None and not numbers.any() and call.samples(position) is None
    if call.fixed * table.per_sample != 1 or not is_zero:
        call.refuse("it picks samples out of the batch")
    shape = call.numbers(call.shape(position))
    free = [axis for axis in range(-block, 0) if all(call.rank(i) < -axis or call.shape(i)[axis] == 1 for i in looked)]
    place = found.axis if found is not None else next(iter(free), 0)
    if prod(shape) != 1 or place == 0 or (found is not None and found.per_sample != 1):
        call.refuse("it picks one sample out of the batch, and what it makes has no dimension for the others")
    wanted = [1] * block
    wanted[place] = -1
    call.edits.append(CountSamples(call.node, table.axis, wanted, call.operands[0][2], table.axis))
    return Samples(first + block + place)


def expand(call: CallView) -> Samples | None:
    """Repeat along other axes; the batch stays as it is."""
    samples = call.only(0)
    if samples is None:
        return None
    made = call.out_shape
    axis = samples.axis - call.rank(0) + len(made)
    if made[axis] != call.fixed * samples.per_sample:
        call.refuse("it repeats the samples of the batch")
    sizes = list(call.argument("size"))
    if sizes[axis] != -1:
        call.edits.append(SetArgument(call.node, "size", [-1 if i == axis else n for i, n in enumerate(sizes)]))
    return samples.at(axis)


def expand_as(call: CallView) -> Samples | None:
    """Repeat along other axes, as far as another value is long."""
    if call.samples(1) is None:
        call.refuse("it repeats the samples of the batch as often as a value that is the same for all is long")
    return call.broadcast(call.given, len(call.out_shape))


def repeat(call: CallView) -> Samples | None:
    """Repeat along other axes."""
    samples = call.only(0)
    if samples is None:
        return None
    repeats = list(call.argument("repeats" if call.has("repeats") else "dims"))
    more = len(call.out_shape) - call.rank(0)
    repeats = [1] * (len(call.out_shape) - len(repeats)) + repeats
    if repeats[samples.axis + more] != 1:
        call.refuse("it repeats the samples of the batch")
    return samples.at(samples.axis + more)


def repeat_interleave(call: CallView) -> Samples | None:
    """Repeat every row along another axis."""
    samples, axes = call.only(0), call.axes("dim", call.rank(0))
    if samples is not None and (axes is None or samples.axis in axes or not isinstance(call.argument("repeats"), int)):
        call.refuse("it repeats the samples of the batch")
    return samples


def roll(call: CallView) -> Samples | None:
    """Turn what lies along some axes round."""
    samples, axes = call.only(0), call.axes("dims", call.rank(0))
    if samples is not None and (axes is None or samples.axis in axes):
        call.refuse("it changes the order of samples")
    return samples


def pad(call: CallView) -> Samples | None:
    """Pad other axes, the last first."""
    samples = call.only(0)
    if samples is None:
        return None
    pads, place = list(call.argument("pad" if call.has("pad") else "padding")), call.rank(0) - 1 - samples.axis
    if any(pads[2 * place : 2 * place + 2]):
        call.refuse("it pads the batch")
    return samples


def one_hot(call: CallView) -> Samples | None:
    """Add an axis of classes."""
    if call.only(0) is not None and int(call.argument("num_classes")) < 0:
        call.refuse("it has as many classes as the largest of all samples says; give num_classes")
    return call.samples(0)


def unfold(call: CallView) -> Samples | None:
    """Cut windows out of another axis, and put their places behind all."""
    return call.apart(call.only(0), {call.axis("dimension")}, "it cuts windows out of the batch")
