"""What each trainer does: where its files lie, what its records mean, how it is told to load."""

FINDINGS: tuple[str, ...] = ()
"""`"module:name"` of each class of rows of what only trainers find, as `Feature.findings` is one of a feature's."""
