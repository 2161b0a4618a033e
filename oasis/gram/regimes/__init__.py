"""The ways to compute the output head's Gram matrix (docs/method.md 1.2)."""
