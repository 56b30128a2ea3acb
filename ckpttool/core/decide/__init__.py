"""Pure rules over the domain types, without access to clocks, files or tensors."""
