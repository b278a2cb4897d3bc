"""Everything a PyTorch user imports: ``from lilliput.torch import LevelPruner``."""

from lilliput.errors import MissingExtraError
from lilliput.public import lazily

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":  # something else is missing, or broken, inside torch
        raise
    raise MissingExtraError(
        "lilliput.torch needs PyTorch: pip install 'lilliput[torch]'"
    ) from error

__getattr__, __dir__, __all__ = lazily(__name__)
