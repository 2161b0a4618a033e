"""Triton kernels, one per file. They need Triton; `import oasis` does not import them."""
