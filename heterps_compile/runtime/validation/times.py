"""After which steps a run validates.

::

    --validate-every 4, 10 steps      . . . V . . . V . V
    without, epochs of 2.5 steps      . . V . V . . V . V      the step in which an epoch ends, and the last

Left out: runs that are interrupted; they end without another validation.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValidationTimes:
    """When a run validates.

    Attributes:
        last: Steps of the whole run.
        every: Steps between two validations; None for the end of every epoch.
        batch: Samples in a step.
        samples: In an epoch; None where the data have no end, or nobody knows.
    """

    last: int
    every: int | None
    batch: int
    samples: int | None

    def are_due(self, step: int) -> bool:
        """Tell whether there is a validation after so many steps."""
        if step == self.last:
            return True
        if self.every is not None:
            return step % self.every == 0
        if self.samples is None:
            return False
        return step * self.batch // self.samples > (step - 1) * self.batch // self.samples
