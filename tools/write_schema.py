"""Write the JSON Schemas of ``plan.json`` and ``profile.json`` into the package.

Run it after a change of ``plan/schema.py`` or ``cost/profile_file.py``.
"""

from pathlib import Path

from heterps_compile.cost import profile_file
from heterps_compile.plan import schema
from heterps_compile.plan.file import render

PACKAGE = Path(__file__).parents[1] / "heterps_compile"

if __name__ == "__main__":
    for folder, module in (("plan", schema), ("cost", profile_file)):
        (PACKAGE / folder / module.SCHEMA_NAME).write_text(render(module.json_schema()) + "\n", "utf-8")
