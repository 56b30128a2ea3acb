"""What every answer stands on: nouns, storage, formats, checks, decisions, and the commands of the main job."""
