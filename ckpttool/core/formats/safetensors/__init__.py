"""Files of safetensors."""

from __future__ import annotations

LENGTH_BYTES = 8
"""What the length of the header takes, in front of it."""

ALIGNMENT = 8
"""safetensors pads the header with the fewest spaces that make its length a multiple of this."""
