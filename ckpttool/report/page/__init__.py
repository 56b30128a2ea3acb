"""Everything known about a tree as one page, in self-contained HTML or in Markdown for a comment."""
