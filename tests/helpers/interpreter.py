"""Where Triton's interpreter cannot run."""


def obstacle(triton: str, numpy: str) -> str:
    """Why these versions cannot interpret kernels; empty if they can."""
    older = tuple(map(int, triton.split(".")[:2])) < (3, 7)
    newer = tuple(map(int, numpy.split(".")[:2])) >= (2, 4)
    return f"Triton {triton} cannot interpret under numpy {numpy}" if older and newer else ""
