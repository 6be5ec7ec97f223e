"""Which machines to rent: the set of offers that trains a model by a deadline or within a budget."""

from .choose import choose, compile_for, decide_for, standing_of
from .goal import Goal, Transience
from .machines_words import told
from .option import Option
from .run_row import row_of_run, rows_text
from .search import Answer

__all__ = [
    "Answer",
    "Goal",
    "Option",
    "Transience",
    "choose",
    "compile_for",
    "decide_for",
    "row_of_run",
    "rows_text",
    "standing_of",
    "told",
]
