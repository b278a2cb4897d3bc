"""The import shim: which paths and names it offers, when it refuses, and that it leaves no trace."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

import lilliput
import lilliput.torch
from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.imports.tables import FOR_TENSORFLOW, NAMES, PATHS
from lilliput.errors import LilliputError, StageError
from lilliput.registry import pruners

FRAMEWORK = [
    *("Compressor", "Pruner", "Quantizer", "WeightMasker", "LayerInfo"),
    *("PrunerModuleWrapper", "QuantizerModuleWrapper", "QuantGrad", "QuantType"),
]
PRUNERS = [
    *("LevelPruner", "AGPruner", "AGP_Pruner", "AGPPruner", "LinearPruner"),
    *("L1FilterPruner", "L2FilterPruner", "L1NormPruner", "L2NormPruner", "FPGMPruner"),
    *("SlimPruner", "TaylorFOWeightFilterPruner", "TaylorFOWeightPruner"),
    *("ActivationAPoZRankFilterPruner", "ActivationMeanRankFilterPruner"),
]
QUANTIZERS = ["NaiveQuantizer", "DoReFaQuantizer"]
PRUNING_HOMES = [
    "nni.compression.torch",
    "nni.compression.pytorch",
    "nni.compressors.torchCompressor",
    "nni.compressors.torch_compressor",
    "nni.compression.torch.pruning",
    "nni.compression.pytorch.pruning",
    "nni.algorithms.compression.pytorch.pruning",
    "nni.algorithms.compression.v2.pytorch.pruning",
    "nni.compression.pruning",
]
QUANTIZATION_HOMES = [
    *PRUNING_HOMES[:4],
    "nni.compression.torch.quantization",
    "nni.compression.pytorch.quantization",
    "nni.algorithms.compression.pytorch.quantization",
    "nni.compression.quantization",
]
FRAMEWORK_HOMES = [
    *PRUNING_HOMES[:4],
    "nni.compression",
    "nni.compression.torch.compressor",
    "nni.compression.pytorch.compressor",
]
TF_HOMES = [
    "nni.compressors.tfCompressor",
    "nni.compressors.tf_compressor",
    "nni.compression.tensorflow",
]
TF_PRUNERS = ["LevelPruner", "AGPruner", "AGP_Pruner", "SensitivityPruner", "FPGMPruner"]
TF_QUANTIZERS = ["NaiveQuantizer", "QATquantizer", "QAT_Quantizer", "DoReFaQuantizer"]
NEVER_HAD = "no_such_name_anywhere"


def today(name):
    """Return Lilliput's class behind a name of NNI."""
    kinds = {"Pruner": lilliput.pruner, "uantizer": lilliput.quantizer}
    of_kind = next((find for end, find in kinds.items() if name.endswith(end)), None)
    return getattr(lilliput.torch, name, None) or of_kind(name)


@pytest.fixture
def shim():
    install()
    yield
    uninstall()


@pytest.fixture
def never(shim, monkeypatch):
    """A pruner that NNI had and Lilliput never will."""
    monkeypatch.setitem(NAMES, "pruners", (*NAMES["pruners"], "NeverPruner"))


@pytest.fixture
def fake_nni(tmp_path, monkeypatch):
    """A real package called nni on the path, with a submodule."""
    package = tmp_path / "site" / "nni"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("REAL = True\n")
    (package / "compression.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(str(package.parent))
    yield package.parent
    uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "nni"]:
        del sys.modules[name]


def nni_modules():
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "nni"}


@pytest.mark.parametrize("path", PATHS)
def test_every_path_imports_as_a_package_with_a_spec(shim, path):
    module = importlib.import_module(path)
    assert module.__name__ == path
    assert module.__spec__.name == path
    assert module.__path__ == []
    assert module.__package__ == path
    assert importlib.util.find_spec(path) is module.__spec__
    assert repr(module) == f"<module {path!r} (lilliput.compat.nni)>"


def test_every_path_has_its_parents_in_the_table():
    assert {path.rpartition(".")[0] for path in PATHS} - {""} <= PATHS.keys()
    assert {part for parts in PATHS.values() for part in parts} == NAMES.keys()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((path, name) for path in FRAMEWORK_HOMES for name in FRAMEWORK if name != "QuantType"),
        *((path, name) for path in PRUNING_HOMES for name in PRUNERS),
        *((path, name) for path in QUANTIZATION_HOMES for name in QUANTIZERS),
    ],
)
def test_old_names_are_lilliputs_own_classes_in_the_form_of_their_version(shim, path, name):
    namespace = {}
    exec(f"from {path} import {name}", namespace)
    assert issubclass(namespace[name], today(name))


def test_a_path_leads_to_one_class_and_paths_of_one_generation_to_the_same(shim):
    from nni.algorithms.compression.pytorch.pruning import L1FilterPruner
    from nni.compression.pruning import L1NormPruner as third
    from nni.compression.pytorch.pruning import L1NormPruner as second
    from nni.compression.torch import L1FilterPruner as first
    from nni.compression.torch import Pruner

    assert first is L1FilterPruner
    assert len({first, second, third}) == 3
    assert all(issubclass(cls, Pruner) for cls in (first, second, third))


@pytest.mark.parametrize("module", ["torchCompressor", "torch_compressor"])
@pytest.mark.parametrize("name", ["Compressor", "Pruner", "Quantizer"])
def test_base_classes_of_2019_are_todays(shim, module, name):
    home = importlib.import_module(f"nni.compressors.{module}")
    assert issubclass(getattr(home, f"Torch{name}"), getattr(lilliput.torch, name))


def test_attributes_reach_modules_that_were_never_imported(shim):
    import nni

    assert issubclass(nni.compressors.torchCompressor.LevelPruner, lilliput.torch.LevelPruner)
    assert nni.algorithms.compression.pytorch.pruning.AGPPruner.adapts is lilliput.torch.AGPPruner


def test_import_as_binds_the_innermost_module(shim):
    import nni.compression.torch as z
    import nni.compression.torch.compressor as y

    assert z.__name__ == "nni.compression.torch"
    assert y.QuantType.QUANT_OUTPUT is y.QuantType.OUTPUT is lilliput.torch.QuantType.OUTPUT
    assert isinstance(y.QuantType("weight"), y.QuantType) and len(list(y.QuantType)) == 3


def test_star_import_takes_what_is_available_and_no_submodules(never):
    namespace = {}
    exec("from nni.compression.pytorch import *", namespace)
    assert {*FRAMEWORK, *PRUNERS, *QUANTIZERS} <= namespace.keys()
    assert not {"compressor", "pruning", "NeverPruner"} & namespace.keys()


def test_dir_lists_names_and_submodules(shim):
    import nni.compression.torch

    assert {"LevelPruner", "QuantGrad", "compressor"} <= {*dir(nni.compression.torch)}


def test_an_import_of_what_is_missing_says_so_and_lists_what_there_is(never):
    with pytest.raises(ImportError, match="NeverPruner is not available in this version") as caught:
        from nni.compression.torch import NeverPruner  # noqa: F401
    assert isinstance(caught.value, LilliputError)
    assert "LevelPruner" in str(caught.value)
    with pytest.raises(ImportError, match="not available in this version"):
        import nni.compression.pytorch.NeverPruner  # noqa: F401


def test_an_attribute_that_is_missing_says_so_and_lists_what_there_is(never):
    import nni

    pruning = nni.algorithms.compression.pytorch.pruning
    with pytest.raises(AttributeError, match=r"NeverPruner is not available.*AGPPruner") as caught:
        _ = pruning.NeverPruner
    assert isinstance(caught.value, LilliputError)
    assert not hasattr(pruning, "NeverPruner")
    with pytest.raises(AttributeError, match="Did you mean 'LevelPruner'"):
        _ = pruning.LevelPrunr


MISSING = [
    "nni.common",
    "nni.common.concrete_trace_utils",
    "nni.nas",
    "nni.retiarii.nn.pytorch",
    "nni.compression.pytorch.utils.no_such_module",
    "nni.compression.torch.utils.no_such_module.deeper",
    "nni.algorithms.hpo.gridsearch_tuner",
    "nni.algorithms.compression.v2.pytorch.pruning.tools.no_such_module",
    f"nni.compression.{NEVER_HAD}",
    f"nni.{NEVER_HAD}",
]


@pytest.mark.parametrize("path", MISSING)
def test_a_missing_module_of_any_path_is_explained(shim, path):
    parent, _, name = path.rpartition(".")
    for code in (f"import {path}", f"import {path} as x", f"from {parent} import {name}"):
        with pytest.raises(ImportError) as caught:
            exec(code, {})
        assert isinstance(caught.value, LilliputError), code
        assert "model compression only" in str(caught.value) or "is not here" in str(caught.value)
    with pytest.raises(ImportError):
        importlib.import_module(path)


def test_the_explanation_of_a_missing_module_names_what_is_beside_it(shim):
    with pytest.raises(ImportError, match=r"Did you mean 'sensitivity_analysis'.*Available in"):
        import nni.compression.pytorch.utils.sensitivity_analysys  # noqa: F401


def test_the_rest_of_nni_is_declined_by_name(shim):
    import nni

    with pytest.raises(AttributeError, match="model compression only"):
        nni.report_final_result(0.9)
    with pytest.raises(ImportError, match="model compression only"):
        import nni.retiarii


def test_a_missing_algorithm_appears_once_it_is_registered(never, monkeypatch):
    monkeypatch.setattr(pruners, "_classes", dict(pruners._classes))
    monkeypatch.setattr(pruners, "_aliases", dict(pruners._aliases))

    import nni.compression.torch

    assert not hasattr(nni.compression.torch, "NeverPruner")

    @pruners.register("never")
    class NeverPruner(lilliput.torch.Pruner): ...

    from nni.compression.torch import NeverPruner as found

    assert issubclass(found, NeverPruner)


@pytest.mark.parametrize("path", [path for path in PATHS if "tensorflow" in PATHS[path]])
@pytest.mark.parametrize("name", ["Compressor", "Pruner", "Quantizer", "LayerInfo"])
def test_bases_for_tensorflow_are_todays(shim, path, name):
    found = getattr(importlib.import_module(path), name)
    assert issubclass(found, getattr(lilliput, name))


@pytest.mark.parametrize("module", ["tfCompressor", "tf_compressor"])
@pytest.mark.parametrize(
    "name", ["Compressor", "Pruner", "Quantizer", "LevelPruner", "AGPruner", "QATquantizer"]
)
def test_names_with_tf_of_2019_are_todays(shim, module, name):
    home = importlib.import_module(f"nni.compressors.{module}")
    assert issubclass(getattr(home, f"Tf{name}"), today(name))


@pytest.mark.parametrize(
    ("path", "names"),
    [
        *((path, TF_PRUNERS + TF_QUANTIZERS) for path in TF_HOMES),
        ("nni.compression.tensorflow.pruning", TF_PRUNERS),
        ("nni.compression.tensorflow.pruning.one_shot", TF_PRUNERS),
        ("nni.algorithms.compression.tensorflow.pruning", TF_PRUNERS),
        ("nni.algorithms.compression.tensorflow.pruning.one_shot", TF_PRUNERS),
    ],
)
def test_algorithms_for_tensorflow_are_lilliputs_own(shim, path, names):
    for name in names:
        namespace = {}
        exec(f"from {path} import {name}", namespace)
        assert issubclass(namespace[name], today(name))


def test_an_algorithm_for_torch_only_is_not_offered_for_tensorflow(shim, monkeypatch):
    monkeypatch.setattr(lilliput.FPGMPruner, "backends", ("torch",))
    with pytest.raises(ImportError, match="FPGMPruner is not available in this version"):
        from nni.compression.tensorflow import FPGMPruner  # noqa: F401


def test_the_paths_of_tensorflow_import_no_framework():
    paths = [path for path, parts in PATHS.items() if FOR_TENSORFLOW & {*parts}]
    code = (
        "import sys, importlib\n"
        "from lilliput.compat.nni import install\n"
        "install()\n"
        f"for path in {paths}:\n"
        "    exec(f'from {path} import *')\n"
        "print([m for m in ('torch', 'keras', 'tensorflow', 'jax') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_install_twice_is_install_once():
    before = list(sys.meta_path)
    install()
    install()
    assert len(sys.meta_path) == len(before) + 1
    uninstall()
    uninstall()
    assert sys.meta_path == before


def test_uninstall_leaves_no_trace():
    before, modules = list(sys.meta_path), nni_modules()
    install()
    importlib.import_module("nni.compression.torch.compressor")
    assert nni_modules().keys() > modules.keys()
    uninstall()
    assert sys.meta_path == before
    assert nni_modules() == modules == {}
    assert importlib.util.find_spec("nni") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nni.compression")


def test_refuses_when_the_real_nni_is_installed(fake_nni):
    with pytest.raises(StageError, match=r"installed .*force=True"):
        install()
    assert nni_modules() == {}
    import nni

    assert nni.REAL


def test_refuses_when_the_real_nni_is_imported(fake_nni):
    import nni.compression

    with pytest.raises(StageError, match="imported already"):
        install()
    assert sys.modules["nni.compression"] is nni.compression


def test_force_shadows_the_real_nni_and_uninstall_gives_it_back(fake_nni):
    import nni.compression as real

    install(force=True)
    from nni.compression.torch import LevelPruner

    assert issubclass(LevelPruner, lilliput.torch.LevelPruner)
    uninstall()
    import nni.compression

    assert nni.compression is real
    assert nni.REAL
    assert {*nni_modules()} == {"nni", "nni.compression"}


def test_a_folder_called_nni_is_no_real_nni(tmp_path, monkeypatch):
    (tmp_path / "nni").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    install()
    try:
        from nni.compression.torch import LevelPruner

        assert issubclass(LevelPruner, lilliput.torch.LevelPruner)
    finally:
        uninstall()
