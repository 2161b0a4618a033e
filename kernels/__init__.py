"""GPU kernels. Nothing here is imported before a tensor asks for it."""
