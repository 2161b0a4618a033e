"""The epilogue of `head_gram` per device: compiled, plain torch, Triton."""
