"""Stages as ONNX models, whatever family the graph is of."""
