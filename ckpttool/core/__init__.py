"""The basis of every answer: nouns, storage, formats, checks, decisions, and the commands of the main job."""
