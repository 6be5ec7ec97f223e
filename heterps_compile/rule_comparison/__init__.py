"""The command ``sync``: the rules by which replicas may agree, side by side on one plan."""

from .compare_rules import RuleComparison, compare_rules

__all__ = ["RuleComparison", "compare_rules"]
