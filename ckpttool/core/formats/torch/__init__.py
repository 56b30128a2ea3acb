"""What `torch.save` and TorchScript write."""
