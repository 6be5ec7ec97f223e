"""A merge that nobody finished, in the text of a file that does not parse.

git leaves both sides between lines of seven signs::

    <<<<<<< HEAD
    "replicas": 3,
    =======
    "replicas": 5,
    >>>>>>> other-branch

No JSON and no TOML of ours has such a line, so readers ask only where parsing failed.

Left out: resolving it.
"""

import re

from heterps_compile.escape import short

_BEGIN = re.compile(r"^(?:<{7}|>{7}|\|{7})(?: .*)?$|^={7}$", re.MULTILINE)


def unmerged(text: str) -> str:
    """Return what is wrong with a text that holds conflict markers, with the line of the first; "" where none is."""
    found = list(_BEGIN.finditer(text))
    if not found:
        return ""
    line = text.count("\n", 0, found[0].start()) + 1
    more = f", and {len(found) - 1} more marker{'s' * (len(found) > 2)} below" if len(found) > 1 else ""
    return (
        f"holds a merge conflict that is not resolved: {short(found[0][0])} at line {line}{more}; "
        f"take one side (git checkout --ours or --theirs), or make the file anew"
    )
