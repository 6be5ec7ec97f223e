"""ONNX ops as functions of PyTorch: the table, and its rows in files by kind."""
