"""Trials on real local clusters of two workers: what one machine finds, also when a worker is killed."""

import math
import os
import sys
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import cluster_toys
import pytest
from cluster_toys import ToyOrder
from digits_search import accuracy, batches, dies_once, digits, trained
from torch import nn

from lilliput.errors import AlgorithmError, MissingExtraError
from lilliput.files import make_folder
from lilliput.search.executors import RayExecutor, outcome, submitted
from lilliput.torch import Search


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


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder in which workers run as well, and from which they import the tests."""
    monkeypatch.chdir(tmp_path)
    Path("parent").write_text(str(os.getpid()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def metrics_of(executor, evaluate, numbers=(3.0, 1.0, 2.0, 5.0)):
    given = [(ToyOrder(number), evaluate, f"network {number:g}") for number in numbers]
    futures = [submitted(executor, *each) for each in given]
    return [outcome(future, *each) for future, each in zip(futures, given, strict=True)]


class Broken(Executor):
    """Every trial ends as given; an error at once if there is no trial."""

    def __init__(self, end=None):
        self.end = end

    def submit(self, *_args, **_kwargs):
        if self.end is None:
            raise OSError("out of reach")
        future = Future()
        self.end(future)
        return future


@pytest.mark.parametrize(
    "executor",
    [
        Broken(),
        Broken(lambda future: future.cancel()),
        Broken(lambda future: future.set_exception(OSError("lost"))),
        *(Broken(lambda f, x=x: f.set_result(x)) for x in (None, math.nan, math.inf, "0.9", True)),
    ],
)
def test_the_trial_of_an_executor_without_a_metric_is_done_here(executor):
    order = SimpleNamespace(make=lambda: SimpleNamespace(model=nn.Linear(3, 2)))
    given = (order, lambda model: float(model.in_features), "a network")
    assert outcome(submitted(executor, *given), *given) == 3.0


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.filterwarnings("default")  # of the engines
@pytest.mark.parametrize("engine", ENGINES, ids=lambda x: x.__name__)
def test_the_trial_of_a_killed_worker_is_done_again(engine, here):
    with engine() as executor:
        assert metrics_of(executor, cluster_toys.doubled) == [6, 2, 4, 10]
        assert metrics_of(executor, cluster_toys.dies_once) == [6, 2, 4, 10]
        assert Path("died").exists()
        with pytest.raises(
            AlgorithmError, match="evaluate raised RuntimeError on network 3: no data"
        ):
            metrics_of(executor, cluster_toys.fails, [3.0])


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.filterwarnings("default")
def test_two_workers_find_what_one_machine_does_even_if_one_of_them_is_killed(here):
    choices = [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1)]
    rules = [{"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.25, 0.5, 0.75]}}]
    given = {"budget": {"macs": 0.9}, "data": batches(2), "example_inputs": digits()[0][:4]}

    def trials(folder, evaluate=accuracy, executor=None):
        search = Search(trained(), rules, evaluate=evaluate, executor=executor, **given)
        return search.start(make_folder(folder)).trials(choices)

    with dask() as executor:
        alone = trials("alone")
        assert trials("together", executor=executor) == alone
        assert not Path("died").exists()
        assert trials("dying", dies_once, executor) == alone
        assert Path("died").exists()


def test_ray_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"RayExecutor needs pip install 'lilliput\[ray\]'"):
        RayExecutor()
