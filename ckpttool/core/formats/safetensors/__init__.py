"""Files of safetensors."""

from __future__ import annotations

ALIGNMENT = 8
"""safetensors pads the header with the fewest spaces that make its length a multiple of this."""
