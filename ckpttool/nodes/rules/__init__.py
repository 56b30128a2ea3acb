"""Consequences of a tree's view from several machines, as pure rules."""
