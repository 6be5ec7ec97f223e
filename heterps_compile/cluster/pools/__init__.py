"""The built-in pools, as TOML files."""
