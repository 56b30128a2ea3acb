"""Health policies. Each is an immutable object that starts a watch of the steps."""
