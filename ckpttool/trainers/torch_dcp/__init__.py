"""torch.distributed.checkpoint (DCP): folders of slices, as a training saves them by itself or its framework for it."""
