"""Small faults put into a copy of the project, to see which of them the tests find: `python -m tests.mutants`."""
