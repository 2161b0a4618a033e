"""Data of one's own: rows of any source, their fields, their tokens, the tasks they make."""
