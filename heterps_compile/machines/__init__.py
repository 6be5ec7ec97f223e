"""Which machines to rent: the set of offers that trains a model by a deadline or within a budget."""

from .choose import choose, compile_for
from .goal import Goal
from .search import Answer, Option

__all__ = ["Answer", "Goal", "Option", "choose", "compile_for"]
