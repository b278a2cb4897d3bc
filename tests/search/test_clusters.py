"""Trials on real local clusters of two workers: what one machine finds, also when a worker is killed."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from digits_search import accuracy, batches, dies_once, digits, trained

from lilliput.errors import AlgorithmError, MissingExtraError
from lilliput.files import make_folder
from lilliput.search.executors import RayExecutor
from lilliput.torch import Search

CHOICES = [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1)]


@contextmanager
def dask():
    distributed = pytest.importorskip("distributed", reason="needs lilliput[dask]")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


@contextmanager
def ray(**options):
    ray = pytest.importorskip("ray", reason="needs lilliput[ray]")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield RayExecutor(**options)
    finally:
        ray.shutdown()


@contextmanager
def ray_without_retries():
    with ray(max_retries=0) as executor:
        yield executor


@contextmanager
def submitit():
    submitit = pytest.importorskip("submitit", reason="needs lilliput[submitit]")
    executor = submitit.AutoExecutor(folder="jobs", cluster="local")
    executor.update_parameters(timeout_min=5)
    yield executor


ENGINES = [dask, ray, ray_without_retries, submitit]


def task_of(folder, evaluate=accuracy, executor=None):
    rules = [{"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.25, 0.5, 0.75]}}]
    search = Search(
        trained(),
        rules,
        budget={"macs": 0.9},
        evaluate=evaluate,
        data=batches(2),
        example_inputs=digits()[0][:4],
        executor=executor,
    )
    return search.start(make_folder(folder))


def fails(model):
    raise RuntimeError("no data here")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder in which workers run as well, and from which they import the tests."""
    monkeypatch.chdir(tmp_path)
    Path("parent").write_text(str(os.getpid()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.filterwarnings("default")  # of the engines
@pytest.mark.parametrize("engine", ENGINES, ids=lambda x: x.__name__)
def test_two_workers_find_what_one_machine_does_even_if_one_of_them_is_killed(engine, here):
    with engine() as executor:
        alone = task_of("alone").trials(CHOICES)
        assert task_of("together", executor=executor).trials(CHOICES) == alone
        assert not Path("died").exists()
        assert task_of("dying", dies_once, executor).trials(CHOICES) == alone
        assert Path("died").exists()
        with pytest.raises(AlgorithmError, match=r"evaluate raised RuntimeError .*: no data here"):
            task_of("failing", fails, executor).trials(CHOICES[:2])


def test_ray_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"RayExecutor needs pip install 'lilliput\[ray\]'"):
        RayExecutor()
