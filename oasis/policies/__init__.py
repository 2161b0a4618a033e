"""Selection methods behind one protocol: `create(name)`, or `register` one of your own."""

import importlib
import pkgutil

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

# Every module of this package: one with a policy registers it itself, and needs no line here.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

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
