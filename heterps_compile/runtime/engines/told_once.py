"""Errors that several ranks tell alike, of which the first is passed on."""

_ERROR = "Error: "


class ToldOnce:
    """Which errors were told."""

    def __init__(self) -> None:
        self._errors: set[str] = set()

    def is_new(self, line: str) -> bool:
        """Tell whether a line is to be passed on: any but an error that was told."""
        if not line.startswith(_ERROR):
            return True
        is_new = line not in self._errors
        self._errors.add(line)
        return is_new
