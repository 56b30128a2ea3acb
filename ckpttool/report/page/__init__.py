"""All that is known of a tree, as one page: HTML that asks for nothing, or Markdown for a comment."""
