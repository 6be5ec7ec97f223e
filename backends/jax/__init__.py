"""The jax backend: stages as pure functions over a dict of parameters, as Python source and safetensors on disk."""
