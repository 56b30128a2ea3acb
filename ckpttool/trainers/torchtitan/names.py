"""What torchtitan calls its saves, and what is in them."""

from __future__ import annotations

DP = "dp"
"""What a save's number of data-parallel ranks is shown as."""
SAVE = "step-([0-9]{1,18})"
INDEX = "model.safetensors.index.json"
"""What a save in Hugging Face's form is told by."""
SECTION = "checkpoint"
"""Of its config: what it says of saves."""
ON = (f"{SECTION}.enable", f"{SECTION}.enable_checkpoint")
"""What switches saves on: in 0.2 and later, and in 0.1."""
LEFT_OUT = f"{SECTION}.exclude_from_loading"
STATE = ("optimizer.", "lr_scheduler", "dataloader.", "train_state")
"""What the names of all that is no weight begin with."""
