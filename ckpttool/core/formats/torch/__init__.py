"""Files written by `torch.save` and TorchScript."""
