"""The page that the report is made of: structure, style, behaviour."""
