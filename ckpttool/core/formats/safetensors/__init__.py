"""The safetensors file format."""

from __future__ import annotations

ALIGNMENT = 8
"""Alignment of the header in bytes; safetensors pads the header with spaces to a multiple of this number."""
