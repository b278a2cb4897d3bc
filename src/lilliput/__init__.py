"""Make trained neural networks smaller and faster.

Importing this module is instant: its names are loaded on first use, and neither torch nor
keras is imported before one of their models is used. Users of one framework import from its façade
instead: ``from lilliput.torch import LevelPruner``.
"""

from lilliput.public import lazily

__version__ = "0.1.0"

__getattr__, __dir__, _names = lazily(__name__)
__all__ = ["__version__", *_names]
