"""Health policies. Each is a frozen value that begins a watch."""
