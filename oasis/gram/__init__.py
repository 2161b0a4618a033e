"""Gram matrices of per-sample gradients: of given gradients, and of the output head's."""

from oasis.gram import operators as _operators  # noqa: F401  (what head_gram and merge run)
from oasis.gram.given import grad_gram
from oasis.gram.head import head_gram
from oasis.gram.types import HeadGram, HeadGramPartial
from oasis.gram.vocabulary import merge

__all__ = ["HeadGram", "HeadGramPartial", "grad_gram", "head_gram", "merge"]
