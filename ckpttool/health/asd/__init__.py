"""Ascend's on-line detection of silent errors."""
