"""Selection methods behind one protocol: `create(name)`, or `register` one of your own."""

from .adapt_inf import AdaptInf
from .base import SIGNALS, Budget, Policy, Signals, create, names, outcome, register, unscored
from .coincide import Coincide
from .dbp import DBP
from .divbs import DivBS
from .full import Full
from .gradnorm import GradNorm
from .greats import Greats
from .infobatch import InfoBatch
from .oasis import Oasis
from .random import Random
from .resumable import Resumable
from .selfsup import SelfSup
from .tive import Tive
from .valid import finite_rows
from .vanilla import Vanilla

register("full", Full)
register("random", Random)
register("oasis", Oasis)
register("vanilla", Vanilla)
register("gradnorm", GradNorm)
register("infobatch", InfoBatch)
register("divbs", DivBS)
register("greats", Greats)
register("selfsup", SelfSup)
register("coincide", Coincide)
register("dbp", DBP)
register("tive", Tive)
register("adapt_inf", AdaptInf)

__all__ = [
    "DBP",
    "SIGNALS",
    "AdaptInf",
    "Budget",
    "Coincide",
    "DivBS",
    "Full",
    "GradNorm",
    "Greats",
    "InfoBatch",
    "Oasis",
    "Policy",
    "Random",
    "Resumable",
    "SelfSup",
    "Signals",
    "Tive",
    "Vanilla",
    "create",
    "finite_rows",
    "names",
    "outcome",
    "register",
    "unscored",
]
