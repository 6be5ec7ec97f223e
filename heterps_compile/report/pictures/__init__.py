"""Pictures of plans as SVG."""
