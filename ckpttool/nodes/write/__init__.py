"""One machine looks at what it has of a tree, so that somebody else can answer for all of it."""
