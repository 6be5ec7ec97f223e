"""heterps.toml: the plans of a repository, and ``check``, ``update`` and ``diff`` of all of them at once."""
