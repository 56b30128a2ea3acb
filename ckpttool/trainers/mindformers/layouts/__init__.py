"""The layouts of MindFormers."""
