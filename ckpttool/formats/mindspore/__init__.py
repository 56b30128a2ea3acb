"""MindSpore `.ckpt` files."""
