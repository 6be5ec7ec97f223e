"""What ONNX's ops are in jax: plain functions, whose source a written stage carries with it."""
