"""Consequences of viewing a tree from several machines, as pure rules."""
