"""Batches of rows: parts of them, their images, rows of earlier ones beside them."""
