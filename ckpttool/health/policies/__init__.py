"""Health policies, each a frozen value that begins a watch."""
