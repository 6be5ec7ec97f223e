"""The rules of ops that move elements, give them another shape, or tell a shape.

Left out: ops that compute with elements (:mod:`.compute_rules`).
"""

import numpy as np

from .edits import CountSamples, DropFirst, Fold, GatherAtEach, GatherInEach, SetAttribute, SetInput, SetLength
from .node_view import NodeView
from .samples import Samples, normal

_SHARED_AXES = 12  # the opset from which GatherND looks up in each row of shared axes
_LONG = 2**31 - 1  # no axis is that long: to the end


def transpose(node: NodeView) -> Samples | None:
    """Put the axes into another order."""
    samples = node.only(0)
    if samples is None:
        return None
    order = node.attribute("perm") or range(node.rank(0))[::-1]
    return samples.at(list(order).index(samples.axis))


def reshape(node: NodeView) -> Samples | None:
    """Give the elements another shape; what says the batch in it becomes -1."""
    samples = node.only(0)
    if samples is None:
        return None
    shape, made = node.shape(0), node.out_shape
    found = node.placed(samples, shape, made)
    target = node.numbers_of(1, "shape")
    wanted: list[int] = []
    for place, (dim, given) in enumerate(zip(made, target, strict=True)):
        if place == found.axis:
            is_copy = given == 0 and not node.attribute("allowzero") and place == samples.axis
            wanted.append(0 if is_copy and found == samples else -1)
        elif isinstance(dim, int):
            wanted.append(dim)
        elif given > 0 or given == -1 or (given == 0 and place != samples.axis and not node.attribute("allowzero")):
            wanted.append(given)
        else:
            node.numbers((dim,))
    if wanted.count(-1) > 1:
        if found != samples or node.attribute("allowzero"):
            node.refuse("its shape leaves two dimensions open, the batch and a dynamic one")
        wanted[found.axis] = 0
    is_said = all(
        w == t or (t in (-1, 0) and w != -1 and place != found.axis and not (t == 0 and place == samples.axis))
        for place, (w, t) in enumerate(zip(wanted, target, strict=True))
    )
    if not is_said:
        node.edits.append(SetInput(node.node, 1, np.array(wanted, np.int64)))
    return found


def flatten(node: NodeView) -> Samples | None:
    """Make a matrix of all."""
    samples = node.only(0)
    if samples is None:
        return None
    split = node.axis(node.rank(0), 1)
    is_first = samples.axis < split
    begin, end = (0, split) if is_first else (split, node.rank(0))
    found = node.joined(samples, node.shape(0), begin, end).at(0 if is_first else 1)
    is_better = node.is_better_written(found, samples, node.shape(0), node.out_shape)
    return node.as_reshape(samples) if is_better else found


def squeeze(node: NodeView) -> Samples | None:
    """Drop axes of length 1."""
    samples = node.only(0)
    if samples is None:
        return None
    axes = node.ints("axes", 1, "list of axes")
    dropped = {normal(a, node.rank(0)) for a in axes or ()}
    if not axes or samples.axis in dropped:
        return node.as_reshape(samples)
    return samples.at(samples.axis - sum(a < samples.axis for a in dropped))


def unsqueeze(node: NodeView) -> Samples | None:
    """Add axes of length 1."""
    samples = node.only(0)
    if samples is None:
        return None
    axes = node.ints("axes", 1, "list of axes") or ()
    rank = node.rank(0) + len(axes)
    added = {normal(a, rank) for a in axes}
    found = samples.at([axis for axis in range(rank) if axis not in added][samples.axis])
    # rows of the samples may become a dimension by themselves again
    return found if samples.per_sample == 1 or found.axis == 0 else node.as_reshape(samples)


def concat(node: NodeView) -> Samples | None:
    """Join along another axis; what is the same for all samples is repeated for each."""
    return node.beside(node.given, node.axis(node.rank(0), 0), "it joins values along the batch")


def split(node: NodeView) -> Samples | None:
    """Cut along another axis."""
    samples = node.only(0)
    if samples is not None and samples.axis == node.axis(node.rank(0), 0):
        node.refuse("it cuts along the batch")
    return samples


def slice_(node: NodeView) -> Samples | None:
    """Take a part along other axes, or all of the batch."""
    samples = node.only(0)
    if samples is None:
        return None
    axes = node.ints("axes", 3, "list of axes")
    if axes is None:
        axes = tuple(range(len(node.ints("starts", 1, "list of starts") or ())))
    along = [normal(a, node.rank(0)) for a in axes]
    if samples.axis not in along:
        return samples
    place, length = along.index(samples.axis), node.fixed * samples.per_sample
    starts, steps = node.ints("starts", 1, "list of starts") or (), node.ints("", 4, "list of steps")
    ends = list(node.ints("ends", 2, "list of ends") or ())
    is_all = starts[place] == 0 and ends[place] >= length and (steps is None or steps[place] == 1)
    if not is_all or along.count(samples.axis) > 1:
        node.refuse("it takes a part of the batch")
    given = node.array(2)
    most = np.iinfo(np.int64 if given is None else given.dtype).max
    if ends[place] < _LONG:
        ends[place] = int(most)
        if given is None:
            node.edits.append(SetAttribute(node.node, "ends", ends))
        else:
            node.edits.append(SetInput(node.node, 2, np.array(ends, given.dtype)))
    return samples


def gather(node: NodeView) -> Samples | None:
    """Look up rows: samples of a table that each have all they need, or samples of places in a table for all."""
    node.only(0, 1)
    data, axis = node.samples(0), node.axis(node.rank(0), 0)
    if data is not None and data.axis == axis:
        return _in_rows_of_each(node, data) if node.samples(1) is None else _one_in_each(node, data, axis)
    return node.looked_up(0, 1, axis)


def _in_rows_of_each(node: NodeView, samples: Samples) -> Samples:
    """Look up rows of the one sample that there is: the same rows in each."""
    places, shape = node.array(1), node.shape(0)
    if node.fixed != 1 or samples.rounds > 1 or places is None or places.size == 0:
        node.refuse("it picks samples out of the batch")
    if samples.per_sample == places.size == 1:
        return node.as_reshape(samples)  # the sample itself
    if places.ndim == 0:
        node.refuse("it picks one row out of those of all samples, and what it makes has no dimension for the others")
    before, behind = node.numbers(shape[: samples.axis]), node.numbers(shape[samples.axis + 1 :])
    node.edits.append(GatherInEach(node.node, before, samples.rows, behind, places))
    return Samples(samples.axis, places.shape[0])


def _one_in_each(node: NodeView, data: Samples, axis: int) -> Samples:
    """Look up rows of the one sample that there is at places of its own: the rows of each at the places of each."""
    places = node.samples(1)
    is_simple = data == Samples(0, data.rows) and places == Samples(0) and axis == 0 and node.fixed == 1
    if not is_simple or node.opset < _SHARED_AXES:
        node.refuse("it looks up places of each sample in a table of each, which pairs each with each")
    behind = node.numbers(node.shape(0)[1:])
    node.edits.append(GatherAtEach(node.node, data.rows, behind))
    return Samples(0)


def gather_elements(node: NodeView) -> Samples | None:
    """Look up elements at the places of the same sample."""
    node.only(0, 1)
    return node.beside([0, 1], node.axis(node.rank(0), 0), "it looks up along the batch")


def scatter_elements(node: NodeView) -> Samples | None:
    """Write elements at the places of the same sample."""
    return node.beside([0, 1, 2], node.axis(node.rank(0), 0), "it writes along the batch")


def gather_nd(node: NodeView) -> Samples | None:
    """Look up entries: places of each sample in a table for all, or in that of the sample (``batch_dims``)."""
    node.only(0, 1)
    data, indices = node.samples(0), node.samples(1)
    shared = int(node.attribute("batch_dims") or 0)
    if data is None and indices is None:
        return None
    if data is not None and indices is None and not shared:
        depth = node.shape(1)[-1]
        if isinstance(depth, int) and data.axis >= depth:
            return data.at(data.axis - depth + node.rank(1) - 1)
        return _entries_of_each(node, data)
    if data == indices == Samples(0) and not shared and node.fixed == 1 and node.opset >= _SHARED_AXES:
        return _entries_at_each(node, Samples(0))
    is_table = data is None and indices is not None and shared <= indices.axis < node.rank(1) - 1
    is_own = data is not None and data == indices and data.axis < shared
    if not (is_table or is_own):
        node.refuse("it looks up entries along the batch")
    return indices


def _entries_of_each(node: NodeView, samples: Samples) -> Samples:
    """Look up entries of the one sample that there is, number 0 of the first axis: the same entries in each."""
    places = node.array(1)
    is_the_one = samples == Samples(0) and node.fixed == 1 and places is not None and not places[..., 0].any()
    if places is None or not is_the_one or node.opset < _SHARED_AXES:
        node.refuse("it looks up entries along the batch")
    if places.ndim == 1 or places.shape[0] != 1 or places.shape[-1] == 1:
        node.refuse("it picks one sample out of the batch, and what it makes has no dimension for the others")
    node.edits.append(SetInput(node.node, 1, places[..., 1:]))
    node.edits.append(SetAttribute(node.node, "batch_dims", 1))
    node.widen(1, 0, 0, samples)
    return samples


def _entries_at_each(node: NodeView, samples: Samples) -> Samples:
    """Look up entries of the one sample that there is, number 0 of the first axis, at places of its own."""
    places = node.value(1)
    maker = None if places is None else places.producer()
    first = maker.inputs[0] if maker is not None and maker.op_type == "Concat" and not maker.domain else None
    numbers = None if first is None else node.constant(first)
    axis = None if maker is None else maker.attributes.get("axis")
    is_last = axis is not None and axis.value in (-1, node.rank(1) - 1)
    if not is_last or numbers is None or numbers.any() or numbers.shape[-1:] != (1,):
        node.refuse("it looks up entries along the batch")
    if node.shape(1)[-1] == 1:
        node.refuse("it looks up samples of the batch")
    node.edits.extend((DropFirst(node.node, 1), SetAttribute(node.node, "batch_dims", 1)))
    return samples


def scatter_nd(node: NodeView) -> Samples | None:
    """Write entries at places that are the same for all samples."""
    node.only(0, 2)
    data, written, depth = node.samples(0), node.samples(2), node.shape(1)[-1]
    if data is None and written is None:
        return None
    if not isinstance(depth, int):
        node.refuse("how deep it writes is not known")
    inside = node.rank(1) - 1 - depth  # what is added to an axis of the data that it does not look up by
    samples = data if data is not None else None if written is None else written.at(written.axis - inside)
    if samples is not None and samples.axis >= depth:
        if written is None:
            node.widen(2, samples.axis + inside, 0, samples)
        elif written != samples.at(samples.axis + inside):
            node.refuse("what it writes has its samples along another axis")
        elif data is None:
            node.widen(0, samples.axis, 2, written)
        return samples
    return _written_in_each(node)


def _written_in_each(node: NodeView) -> Samples:
    """Write entries of the one sample that there is, number 0 of the first axis: the same entries in each."""
    places, samples = node.array(1), Samples(0)
    is_first = all(node.samples(i) in (None, samples) for i in (0, 2)) and node.fixed == 1 and places is not None
    if places is None or not is_first or places.ndim == 1 or places.shape[0] != 1 or places[..., 0].any():
        node.refuse("it writes along the batch")
    like = 0 if node.samples(0) is not None else 2
    for i in (0, 2):
        if node.samples(i) is None:
            node.widen(i, 0, like, samples)
    value = node.value(like)
    assert value is not None  # noqa: S101 - it has samples
    node.edits.append(CountSamples(node.node, places, value, 0))
    return samples


def expand(node: NodeView) -> Samples | None:
    """Repeat along other axes; what says the batch in the shape becomes 1, which leaves it as it is."""
    samples = node.only(0)
    if samples is None:
        return None
    made = node.out_shape
    axis = samples.axis - node.rank(0) + len(made)
    if made[axis] != node.fixed * samples.per_sample:
        node.refuse("it repeats the samples of the batch")
    numbers = node.numbers_of(1, "shape")
    place = len(numbers) + samples.axis - node.rank(0)
    if place >= 0 and numbers[place] != 1:
        wanted = [1 if i == place else n for i, n in enumerate(numbers)]
        node.edits.append(SetInput(node.node, 1, np.array(wanted, np.int64)))
    return samples.at(axis)


def tile(node: NodeView) -> Samples | None:
    """Repeat along other axes."""
    samples = node.only(0)
    if samples is not None and (node.ints("", 1, "list of repeats") or ())[samples.axis] != 1:
        node.refuse("it repeats the samples of the batch")
    return samples


def pad(node: NodeView) -> Samples | None:
    """Pad along other axes."""
    samples = node.only(0)
    if samples is None:
        return None
    pads, axes, rank = node.ints("pads", 1, "list of pads") or (), node.ints("", 3, "list of axes"), node.rank(0)
    along = range(rank) if axes is None else [normal(a, rank) for a in axes]
    if any(a == samples.axis and (pads[i] or pads[i + len(along)]) for i, a in enumerate(along)):
        node.refuse("it pads the batch")
    return samples


def resize(node: NodeView) -> Samples | None:
    """Scale the other axes; a size that says the batch becomes its length."""
    samples = node.only(0)
    if samples is None:
        return None
    if node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize" or node.attribute("antialias"):
        node.refuse("it crops, or filters over all axes")
    if node.attribute("scales") is not None or node.value(3) is None:
        where = 1 if node.name == "Upsample" or len(node.node.inputs) == 2 else 2
        scales = node.attribute("scales") if node.attribute("scales") is not None else node.array(where)
    else:
        scales = None
    axes = node.attribute("axes")
    along = list(range(node.rank(0))) if axes is None else [normal(int(a), node.rank(0)) for a in axes]
    if samples.axis not in along:
        return samples
    place = along.index(samples.axis)
    if scales is not None and len(np.ravel(scales)):
        if float(np.ravel(scales)[place]) != 1:
            node.refuse("it scales the batch")
        return samples
    sizes, value = node.array(3), node.value(0)
    if sizes is None or value is None or int(sizes.reshape(-1)[place]) != node.fixed * samples.per_sample:
        node.refuse("it scales by sizes that depend on the inputs, or scales the batch")
    if (node.attribute("keep_aspect_ratio_policy") or "stretch") != "stretch":
        node.refuse("it keeps the ratio of all sizes, the batch among them")
    node.edits.append(SetLength(node.node, 3, sizes.reshape(-1), place, value, samples.axis))
    return samples


def one_hot(node: NodeView) -> Samples | None:
    """Add an axis of classes."""
    samples = node.only(0)
    if samples is None:
        return None
    axis = node.axis(node.rank(0) + 1, -1)
    return samples if samples.axis < axis else samples.at(samples.axis + 1)


def last_two(node: NodeView) -> Samples | None:
    """Work on matrices, those of the last two axes."""
    samples = node.only(0)
    if samples is not None and samples.axis >= node.rank(0) - 2:
        node.refuse("it works on matrices of which the batch is a side")
    return samples


def shape_of(node: NodeView) -> Samples | None:
    """Let a shape be the one that the model has now: what it means for one batch, it means for each of its samples."""
    samples = node.samples(0)
    if samples is None:
        return None
    if node.node.outputs[0].is_graph_output():
        node.refuse("it makes an output of the model out of the size of the batch")
    shape = node.shape(0)
    start, end = node.attribute("start") or 0, node.attribute("end")
    part = range(len(shape))[start : len(shape) if end is None else end]
    if node.node.op_type == "Shape" and samples.axis not in part:
        return None
    numbers = node.numbers(shape if node.node.op_type == "Size" else tuple(shape[i] for i in part))
    array = np.array(np.prod(numbers, dtype=np.int64) if node.node.op_type == "Size" else numbers, np.int64)
    node.edits.append(Fold(node.node, array))
    return None
