"""Everything a Keras user imports: ``from lilliput.keras import LevelPruner``."""

from lilliput.errors import MissingExtraError
from lilliput.public import lazily

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("keras", "tensorflow", "jax", "torch"):  # something inside them
        raise
    raise MissingExtraError(
        "lilliput.keras needs Keras 3 and one of its backends: pip install 'lilliput[keras]' tensorflow"
    ) from error

__getattr__, __dir__, __all__ = lazily(__name__)
