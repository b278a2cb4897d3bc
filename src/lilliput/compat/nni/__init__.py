"""Run code written for NNI's model compression: its import paths lead to our classes.

Nothing happens until you request it, in one of two ways::

    python -m lilliput.compat.nni train.py --epochs 3     # a script, unchanged

    from lilliput.compat.nni import install               # or the first lines of your program
    install()

The classes behind the old paths are Lilliput's own, so a model pruned through them is the same as
one pruned through ``lilliput.torch``, or through ``lilliput.keras`` for the paths of TensorFlow. A
process that is not a fork of this one (such as a spawned data loader worker) has to call
``install()`` itself.
"""

from lilliput.compat.nni.imports.finder import install, uninstall

__all__ = ["install", "uninstall"]
