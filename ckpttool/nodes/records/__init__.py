"""The file that is a part: written where the disk is, read where the answer is wanted."""
