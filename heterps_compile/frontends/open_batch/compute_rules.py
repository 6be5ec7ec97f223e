"""The rules of ops that compute: products, statistics over axes, recurrences, attention.

Left out: ops that only move elements (:mod:`.move_rules`).
"""

from .node_view import NodeView
from .samples import Samples, normal

_SINGLE_AXIS = 13  # the opset from which Softmax has one axis, not all from one on


def element_by_element(node: NodeView) -> Samples | None:
    """Broadcast all operands."""
    return node.broadcast(node.given, len(node.out_shape))


def first_alone(node: NodeView) -> Samples | None:
    """Take the first input, of which every element is by itself; the others are the same for all samples."""
    return node.only(0)


def first_of_all(node: NodeView) -> Samples | None:
    """Take the first input; of the others only the data type is read."""
    return node.samples(0)


def images(node: NodeView) -> Samples | None:
    """Work on images, or rows, that lie along the first axis, with weights that are the same for all."""
    return node.first_axis(node.only(0))


def rows(node: NodeView) -> Samples | None:
    """Work on the rows of a matrix, each a sample."""
    samples = images(node)
    if samples is not None and node.rank(0) < 2:
        node.refuse("it takes a vector as one sample")
    return samples


def pool(node: NodeView) -> Samples | None:
    """Pool images; the places of the largest are counted through the whole batch."""
    samples = images(node)
    if samples is not None and node.uses(1):
        node.refuse("it gives places that are counted through all samples")
    return samples


def batch_normalization(node: NodeView) -> Samples | None:
    """Normalise with statistics that are kept; in training mode they are those of the batch."""
    samples = images(node)
    if samples is not None and (node.attribute("training_mode") or any(node.uses(i) for i in range(1, 5))):
        node.refuse("it is in training mode and takes the mean over all samples; export the model in evaluation mode")
    return samples


def matmul(node: NodeView) -> Samples | None:
    """Multiply stacks of matrices: rows of the one, or columns of the other, or a stack of both may be samples."""
    return _matmul(node, 1)


def quantized_matmul(node: NodeView) -> Samples | None:
    """Multiply as above, with a scale and a zero point behind each operand."""
    if node.samples(0) is not None and any(node.shape(i) not in ((), (1,)) for i in (1, 2)):
        node.refuse("it has a scale or a zero point for every row")
    return _matmul(node, 3)


def integer_matmul(node: NodeView) -> Samples | None:
    """Multiply as above; the zero point of the first may be one for every row."""
    if node.samples(0) is not None and node.value(2) is not None and node.shape(2) not in ((), (1,)):
        node.refuse("it has a zero point for every row")
    return _matmul(node, 1)


def _matmul(node: NodeView, second: int) -> Samples | None:
    node.only(0, second)
    if node.samples(0) is None and node.samples(second) is None:
        return None
    return node.product(0, second, len(node.out_shape))


def gemm(node: NodeView) -> Samples | None:
    """Multiply a matrix whose rows are samples, and add to each."""
    samples = node.only(0, 2)
    if samples is None:
        return first_alone(node)
    if samples.axis != (1 if node.attribute("transA") else 0):
        node.refuse("it sums over the batch")
    added = node.samples(2)
    if added is not None and added.at(added.axis - node.rank(2)) != samples.at(-2):
        node.refuse("what it adds has its samples along another axis")
    if added is None and node.value(2) is not None:
        node.check_same(2, -2)
    return samples.at(0)


def einsum(node: NodeView) -> Samples | None:
    """Have one letter for the samples, in the result too."""
    return node.einsum(str(node.attribute("equation") or ""), node.given)


def softmax(node: NodeView) -> Samples | None:
    """Normalise along one axis; before opset 13 over all axes from one on."""
    samples = node.only(0)
    if samples is None:
        return None
    is_single = node.opset >= _SINGLE_AXIS
    axis = node.axis(node.rank(0), -1 if is_single else 1)
    if samples.axis == axis or (samples.axis > axis and not is_single):
        node.refuse("it normalises over the batch")
    return samples


def layer_normalization(node: NodeView) -> Samples | None:
    """Normalise over all axes from one on."""
    samples = node.only(0)
    if samples is not None and samples.axis >= node.axis(node.rank(0), -1):
        node.refuse("it normalises over the batch")
    return samples


def skip_normalization(node: NodeView) -> Samples | None:
    """Add two values and normalise over the last axis."""
    node.only(0, 1)
    samples = node.broadcast([0, 1], len(node.out_shape))
    if samples is not None and samples.axis == len(node.out_shape) - 1:
        node.refuse("it normalises over the batch")
    return samples


def lp_normalization(node: NodeView) -> Samples | None:
    """Normalise, or sum up, along one axis."""
    samples = node.only(0)
    return None if samples is None else node.apart(samples, {node.axis(node.rank(0), -1)}, "it works along the batch")


def mean_variance(node: NodeView) -> Samples | None:
    """Normalise over some axes."""
    samples = node.only(0)
    axes = {normal(int(a), 4) for a in node.attribute("axes") or (0, 2, 3)}
    return node.apart(samples, axes, "it takes the mean over the batch")


def reduce(node: NodeView) -> Samples | None:
    """Bring some axes together."""
    samples = node.only(0)
    if samples is None:
        return None
    axes = node.ints("axes", 1, "list of axes")
    if not axes:
        if node.attribute("noop_with_empty_axes"):
            return samples
        node.refuse("it brings all axes together, the batch too")
    return _without(node, samples, {normal(a, node.rank(0)) for a in axes})


def arg(node: NodeView) -> Samples | None:
    """Find places along one axis."""
    samples = node.only(0)
    return None if samples is None else _without(node, samples, {node.axis(node.rank(0), 0)})


def _without(node: NodeView, samples: Samples, axes: set[int]) -> Samples:
    is_kept = node.attribute("keepdims")
    return node.without(samples, axes, is_kept=is_kept is None or bool(is_kept))


def cumulative(node: NodeView) -> Samples | None:
    """Sum up along one axis."""
    samples = node.only(0)
    if samples is not None and samples.axis in {normal(a, node.rank(0)) for a in node.ints("", 1, "axis") or (0,)}:
        node.refuse("it sums up along the batch")
    return samples


def recurrent(node: NodeView) -> tuple[Samples | None, ...] | None:
    """Go through time step by step; states that are the same for all samples are repeated for each."""
    states = [5, 6] if node.name == "LSTM" else [5]
    samples = node.only(0, 4, *states)
    if samples is None:
        if any(node.samples(i) is not None for i in (4, *states)):
            node.refuse("its states have samples, and the sequence it goes through has none")
        return None
    is_first = bool(node.attribute("layout"))
    if samples.axis != (0 if is_first else 1):
        node.refuse(f"it goes through axis {samples.axis}, where the batch lies, step by step")
    for i, axis in ((4, 0), *((i, 0 if is_first else 1) for i in states)):
        if node.value(i) is not None:
            if node.samples(i) is None:
                node.widen(i, axis, 0, samples)
            elif node.samples(i) != samples.at(axis):
                node.refuse(f"its input {i} has its samples along another axis than {axis}")
    last = samples.at(0 if is_first else 1)
    return samples.at(0 if is_first else 2), last, last


def reverse_sequence(node: NodeView) -> Samples | None:
    """Reverse each sample as far as it is long."""
    samples = node.only(0, 1)
    if samples is None:
        return None
    if samples.axis != node.axis(node.rank(0), 1, "batch_axis"):
        node.refuse("its batch lies along another axis")
    if node.samples(1) is None:
        node.widen(1, 0, 0, samples)
    elif node.samples(1) != samples.at(0):
        node.refuse("its lengths have their samples along another axis")
    return samples


def quantize(node: NodeView) -> Samples | None:
    """Scale each element; a scale may be one for every place along another axis."""
    samples = node.only(0)
    if samples is None:
        return None
    scale = node.shape(1)
    if scale not in ((), (1,)) and (len(scale) != 1 or samples.axis == node.axis(node.rank(0), 1)):
        node.refuse("it has a scale for every row of the batch")
    return samples


def dynamic_quantize(node: NodeView) -> Samples | None:
    """Scale by the smallest and the largest element, those of all samples."""
    if node.only(0) is not None:
        node.refuse("it takes one scale from the elements of all samples; quantise the model with static scales")
    return None


def attention(node: NodeView) -> Samples | None:
    """Attend inside each sample; a mask may be the same for all."""
    samples = node.first_axis(node.samples(0))
    rest = node.given[1:]
    if samples is None:
        if any(node.samples(i) is not None for i in rest):
            node.refuse("its queries are the same for all samples, and other inputs are not")
        return None
    for i in rest:
        if node.samples(i) is None:
            is_mask = i == (3 if node.name == "Attention" else 5)
            is_bias = node.name != "Attention" and i == 3
            if not (is_bias or (is_mask and (node.rank(i) < 4 or node.shape(i)[0] == 1))):
                node.refuse(f"its input {i} is the same for all samples, and its queries are not")
        elif node.samples(i) != samples or (node.name == "Attention" and i == 3 and node.rank(3) != 4):
            node.refuse(f"its input {i} has its samples along another axis")
    return samples
