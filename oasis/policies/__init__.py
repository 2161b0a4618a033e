"""Selection methods behind one protocol: `create(name)`, or `register` one of your own."""

from .base import SIGNALS, Budget, Policy, Signals, create, names, register, unscored
from .divbs import DivBS
from .full import Full
from .gradnorm import GradNorm
from .greats import Greats
from .infobatch import InfoBatch
from .oasis import Oasis
from .random import Random
from .vanilla import Vanilla

register("full", Full)
register("random", Random)
register("oasis", Oasis)
register("vanilla", Vanilla)
register("gradnorm", GradNorm)
register("infobatch", InfoBatch)
register("divbs", DivBS)
register("greats", Greats)

__all__ = [
    "SIGNALS",
    "Budget",
    "DivBS",
    "Full",
    "GradNorm",
    "Greats",
    "InfoBatch",
    "Oasis",
    "Policy",
    "Random",
    "Signals",
    "Vanilla",
    "create",
    "names",
    "register",
    "unscored",
]
