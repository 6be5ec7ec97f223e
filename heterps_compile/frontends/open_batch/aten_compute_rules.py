"""The rules of PyTorch's ops that compute: products, statistics over axes, recurrences, attention.

Left out: ops that only move elements (:mod:`.aten_move_rules`).
"""

from collections.abc import Callable

from .call_view import CallView, Made
from .samples import Samples

_ALL_TOGETHER = "it brings all axes together, the batch too"


def element_by_element(call: CallView) -> Samples | None:
    """Broadcast all operands."""
    if isinstance(call.node.meta["val"], (tuple, list)):
        call.refuse("what it makes has a size that depends on the samples")
    return call.broadcast(call.given, len(call.out_shape))


def first_alone(call: CallView) -> Samples | None:
    """Take the first operand, of which every element is by itself; the others are the same for all samples."""
    return call.only(0)


def first_of_all(call: CallView) -> Samples | None:
    """Take the shape of the first operand; of the others only the data type is read."""
    return call.samples(0)


def data_type_alone(call: CallView) -> None:
    """Read nothing of the operands but their data type."""


def images(call: CallView) -> Samples | None:
    """Work on images that lie along the first axis, with weights that are the same for all."""
    return call.first_axis(call.only(0))


def convolution(call: CallView) -> Samples | None:
    """Work as above; without the axis of images there is one sample alone, which begins with its channels."""
    samples = images(call)
    if samples is not None and call.rank(0) != call.rank(call.positions("weight")[0]):
        call.refuse("it takes what lies along the batch for channels")
    return samples


def behind(count: int) -> Callable[[CallView], Samples | None]:
    """Return the rule of ops that work on so many dimensions at the end, for each place before them alone."""

    def rule(call: CallView) -> Samples | None:
        samples = call.only(0)
        if samples is not None and samples.axis >= call.rank(0) - count:
            call.refuse("it works along the batch")
        return samples

    return rule


def channels(call: CallView) -> Samples | None:
    """Work on images of several channels, each a sample."""
    samples = images(call)
    if samples is not None and call.rank(0) != 4:
        call.refuse("it takes what lies along the batch for channels")
    return samples


def batch_normalization(call: CallView) -> Made:
    """Normalise with statistics that are kept; in training mode they are those of the batch."""
    samples = images(call)
    if samples is not None and any(call.argument(name) for name in ("training", "train")):
        call.refuse("it is in training mode and takes the mean over all samples; export the model in evaluation mode")
    made = call.node.meta["val"]
    return (samples, *[None] * (len(made) - 1)) if isinstance(made, (tuple, list)) else samples


def instance_normalization(call: CallView) -> Samples | None:
    """Normalise each image by itself; statistics that are kept would be of all."""
    samples = images(call)
    if samples is not None and call.argument("use_input_stats") and call.positions("running_mean"):
        call.refuse("it is in training mode and keeps the mean over all samples; export the model in evaluation mode")
    return samples


def layer_normalization(call: CallView) -> Samples | None:
    """Normalise over the axes at the end."""
    samples = call.only(0)
    if samples is not None and samples.axis >= call.rank(0) - len(call.argument("normalized_shape")):
        call.refuse("it normalises over the batch")
    return samples


def parametric_relu(call: CallView) -> Samples | None:
    """Compute element by element, with a weight for every place along axis 1."""
    samples = call.only(0)
    if samples is not None and samples.axis == 1 and call.shape(1) not in ((), (1,)):
        call.refuse("it has a weight for every row of the batch")
    return samples


def linear(call: CallView) -> Samples | None:
    """Multiply the last axis by weights that are the same for all."""
    return call.apart(call.only(0), {call.rank(0) - 1}, "it sums over the batch")


def matmul(call: CallView) -> Samples | None:
    """Multiply stacks of matrices."""
    return call.product(0, 1, len(call.out_shape))


def added_matmul(call: CallView) -> Samples | None:
    """Multiply stacks of matrices, and add to each."""
    found = call.product(1, 2, len(call.out_shape))
    if found is None:
        call.refuse("what it adds has samples, and what it multiplies has none")
    place, added = found.axis - len(call.out_shape), call.samples(0)
    if added is None:
        call.check_same(0, place)
    elif added.at(added.axis - call.rank(0)) != found.at(place):
        call.refuse("what it adds has its samples along another axis")
    return found


def einsum(call: CallView) -> Samples | None:
    """Have one letter for the samples, in the result too."""
    return call.einsum(str(call.argument("equation")), call.given)


def softmax(call: CallView) -> Samples | None:
    """Normalise along one axis."""
    return call.apart(call.only(0), {call.axis()}, "it normalises over the batch")


def reduce(call: CallView) -> Samples | None:
    """Bring some axes together."""
    samples = call.only(0)
    if samples is None:
        return None
    axes = call.axes("dim", call.rank(0))
    if axes is None:
        call.refuse(_ALL_TOGETHER)
    return call.without(samples, set(axes), is_kept=bool(call.argument("keepdim")))


def extreme(call: CallView) -> Samples | None:
    """Find the largest along an axis, or of two operands element by element."""
    return element_by_element(call) if call.has("other") else reduce(call)


def cumulative(call: CallView) -> Samples | None:
    """Sum up along one axis."""
    return call.apart(call.only(0), {call.axis()}, "it sums up along the batch")


def ordered(call: CallView) -> Samples | None:
    """Order what lies along one axis."""
    return call.apart(call.only(0), {call.axis()}, "it orders the samples of the batch")


def differences(call: CallView) -> Samples | None:
    """Take differences along one axis, of which ends may be given."""
    return call.beside(call.given, call.axis(), "it takes differences of samples")


def halves(call: CallView) -> Samples | None:
    """Multiply one half along an axis by the other."""
    return call.apart(call.only(0), {call.axis()}, "it works along the batch")


def attention(call: CallView) -> Samples | None:
    """Attend inside each sample; a mask may be the same for all."""
    made = len(call.out_shape)
    found = call.aligned(call.given, behind=2)
    if found is None:
        return None
    if call.argument("enable_gqa") and found.axis == -3:
        call.refuse("it attends with one head for several, and the batch lies along them")
    samples = found.at(made + found.axis)
    for i in call.given:
        if call.samples(i) is None and i not in call.positions("attn_mask"):
            like = next(j for j in call.given if call.samples(j) is not None)
            call.widen(i, call.rank(i) + found.axis, like, found.at(call.rank(like) + found.axis))
    return samples


def recurrent(call: CallView) -> tuple[Samples | None, ...] | None:
    """Go through time step by step; states that are the same for all samples are repeated for each."""
    states = call.positions("hx")
    samples = call.only(0, *states)
    if samples is None:
        call.refuse("its states have samples, and the sequence it goes through has none")
    if not call.has("batch_first"):
        call.refuse("it goes through packed sequences, in which samples lie among each other")
    is_first = bool(call.argument("batch_first"))
    if samples.axis != (0 if is_first else 1) or call.rank(0) != 3:
        call.refuse(f"it goes through axis {samples.axis}, where the batch lies, step by step")
    for i in states:
        if call.samples(i) is None:
            call.widen(i, 1, 0, samples)
        elif call.samples(i) != samples.at(1):
            call.refuse(f"its state {call.label(i)} has its samples along another axis than 1")
    return samples, *(samples.at(1) for _ in states)


def cell(call: CallView) -> Samples | None:
    """Take one step of a recurrence."""
    states = call.positions("hx")
    samples = call.first_axis(call.only(0, *states))
    if samples is None:
        call.refuse("its states have samples, and what it reads has none")
    for i in states:
        if call.samples(i) is None:
            call.widen(i, 0, 0, samples)
        elif call.samples(i) != samples:
            call.refuse(f"its state {call.label(i)} has its samples along another axis than 0")
    return samples


def embedding(call: CallView) -> Samples | None:
    """Look up the rows of a table that is the same for all."""
    call.only(1)
    return call.looked_up(0, 1, 0)


def of_unknown_size(call: CallView) -> Made:
    """Refuse what makes as many elements as the samples say."""
    call.refuse("what it makes has a size that depends on the samples")
