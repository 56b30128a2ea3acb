"""Parts are put together: the tree that they are of, and what the core asks of the machines that wrote them."""
