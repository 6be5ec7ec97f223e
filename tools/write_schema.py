"""Write the JSON Schema of ``plan.json`` into the package; run it after a change of ``plan/schema.py``."""

from pathlib import Path

from heterps_compile.plan.file import render
from heterps_compile.plan.schema import SCHEMA_NAME, json_schema

if __name__ == "__main__":
    target = Path(__file__).parents[1] / "heterps_compile" / "plan" / SCHEMA_NAME
    target.write_text(render(json_schema()) + "\n", "utf-8")
