"""What several trainers share."""

LOOSE_FILE_LAYOUT = "loose-file"
"""What JSON and `--layout` call a file that stands in no tree."""
