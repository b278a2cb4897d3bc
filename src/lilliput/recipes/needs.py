"""What the steps of a recipe need to be installed, known before any work is done."""

from __future__ import annotations

from lilliput.errors import MissingExtraError
from lilliput.extras import is_installed
from lilliput.recipes.spec import ExportStep, Recipe

# Files are executed as well as written: the receipt measures them.
_MODULES = {
    ("torch", "onnx"): ("onnx", "onnx_ir", "onnxscript", "onnxruntime"),
    ("keras", "onnx"): ("tensorflow", "tf2onnx", "onnx", "onnx_ir", "onnxruntime"),
    ("keras", "litert"): ("tensorflow", "ai_edge_litert"),
}
_EXTRAS = {
    ("torch", "onnx"): "onnx",
    ("keras", "onnx"): "litert,onnx",
    ("keras", "litert"): "litert",
}


def check_installed(recipe: Recipe, framework: str) -> None:
    """Raise if a step needs a package that is not installed; all such steps at once.

    Parameters
    ----------
    recipe : Recipe
        What is to be done.
    framework : str
        ``'torch'`` or ``'keras'``: that of the model.
    """
    problems = []
    for number, step in enumerate(recipe.steps, 1):
        if not isinstance(step, ExportStep):
            continue
        kind = (framework, step.export)
        missing = [name for name in _MODULES.get(kind, ()) if not is_installed(name)]
        if missing:
            problems.append(
                f"step {number}: export: {step.export} needs {', '.join(missing)}: "
                f"pip install 'lilliput[{_EXTRAS[kind]}]'"
            )
    if problems:
        raise MissingExtraError("\n".join(problems))
