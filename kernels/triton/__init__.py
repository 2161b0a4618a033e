"""Triton kernels, one per file. Importing them needs Triton; `import oasis` does not import them."""
