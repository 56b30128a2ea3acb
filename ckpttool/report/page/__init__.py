"""Everything known about a tree, as one page: self-contained HTML, or Markdown for a comment."""
