"""Settings as one declarative model: types, limits, help and scope of each, said once."""

from oasis.lab.settings.errors import WrongSetting
from oasis.lab.settings.model import Scope, Settings, in_grid, names, setting
from oasis.lab.settings.overrides import override

__all__ = ["Scope", "Settings", "WrongSetting", "in_grid", "names", "override", "setting"]
