"""The method, literally: float64, slow, obvious. The yardstick of tests/ and bench/.

Nothing here is imported from the rest of the package, so that an error there cannot hide here.
Every function follows one definition of the method and takes the arguments of its fast
counterpart; where the two could be written alike, this one is written the long way round.
"""

from .generator import philox, uniform
from .gram import HeadGram, autograd_head_grads, grad_gram, head_gram
from .memory import grad_sketch, remembered, split_mix
from .oris import Statistics, bounds, draw, relative, settle, steer, threshold, update, width
from .siren import SirenResult, mean_field_sum, siren

__all__ = [
    "HeadGram",
    "SirenResult",
    "Statistics",
    "autograd_head_grads",
    "bounds",
    "draw",
    "grad_gram",
    "grad_sketch",
    "head_gram",
    "mean_field_sum",
    "philox",
    "relative",
    "remembered",
    "settle",
    "siren",
    "split_mix",
    "steer",
    "threshold",
    "uniform",
    "update",
    "width",
]
