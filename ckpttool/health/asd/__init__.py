"""Ascend's online detection of silent errors."""
