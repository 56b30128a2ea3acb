"""What Hugging Face's Trainer calls its saves, and the records in them."""

SAVE = r"checkpoint-[0-9]{1,18}"
STATE = "trainer_state.json"
"""Written last, and in place."""
UNFINISHED = "checkpoint-is-incomplete.txt"
"""In a save that transformers 5 makes on SIGTERM, until it is done."""
MODEL_CONFIG = "config.json"
ARGUMENTS = "training_args.bin"
