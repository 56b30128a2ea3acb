"""Files of safetensors."""
