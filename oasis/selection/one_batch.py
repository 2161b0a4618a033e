"""`oasis.select`: one batch, with or without a stream behind it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from oasis.selection.selector import Selector
from oasis.selection.types import Selection


def select(
    grads: Tensor | Sequence[Tensor],
    *,
    ratio: float = 0.25,
    selector: Selector | None = None,
    seed: int = 0,
) -> Selection:
    """Select the samples of one batch worth training on.

    With a `selector`, the batch is judged against everything that selector has seen, and its state
    advances. Without one, the batch is treated as the first of a stream: scores are normalised by
    the batch's own mean and deviation, and nothing is remembered.

    Args:
        grads: [N, ...] per-sample gradients of the last layer, or a sequence of such tensors, one
            per parameter.
        ratio: expected share to select, in (0, 1]; ignored with a `selector`, which has its own.
        selector: the stream's state.
        seed: of the draw; ignored with a `selector`.

    The draw is a function of `seed` alone: in a loop use a `selector`, or another seed each time.

    Raises:
        TypeError, ValueError: naming the argument; also for samples with non-finite gradients.

    Example:
        >>> selection = select(torch.randn(16, 1000), ratio=0.25)
        >>> chosen = selection.indices
    """
    if selector is None:
        selector = Selector(ratio, seed=seed)
        several = isinstance(grads, Sequence) and len(grads)
        first = grads[0] if several else grads
        if isinstance(first, Tensor):
            selector.to(first.device)
    elif not isinstance(selector, Selector):
        raise TypeError(f"selector: got {type(selector).__name__}, expected an oasis.Selector")
    return selector.select(grads)
