"""What several trainers share."""

LOOSE_FILE_LAYOUT = "loose-file"
"""What JSON and `--layout` call a file that stands in no tree."""

TRACKER = "latest_checkpointed_iteration.txt"

TRACKERS = {TRACKER: "Megatron-LM, verl or MindFormers", "latest": "DeepSpeed"}
"""Files that name the last save, by whoever writes one."""
