"""The PyTorch backend: stages as ``nn.Module`` objects in memory, as Python source and safetensors on disk."""
