"""Selection methods behind one protocol: `create(name)`, or `register` one of your own."""

from .base import SIGNALS, Budget, Policy, Signals, create, names, register, unscored
from .full import Full
from .oasis import Oasis
from .random import Random

register("full", Full)
register("random", Random)
register("oasis", Oasis)

__all__ = [
    "SIGNALS",
    "Budget",
    "Full",
    "Oasis",
    "Policy",
    "Random",
    "Signals",
    "create",
    "names",
    "register",
    "unscored",
]
