"""What is said of the machine."""

import json
import sys

from lilliput.report import environment as module
from lilliput.report.environment import environment, processor_flags


def test_it_is_plain_data_and_names_what_is_installed():
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["packages"]["numpy"] and found["cores"] >= 1 and found["cpu"]
    assert all(isinstance(x, bool) for x in found["flags"].values())


def test_flags_are_read_from_what_the_kernel_lists(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    lists = {
        "x86_64": ("fpu avx2 avx512f avx_vnni", {"avx2", "avx512", "vnni"}),
        "aarch64": ("fp asimd asimddp", {"neon", "dotprod"}),
    }
    for machine, (listed, expected) in lists.items():
        monkeypatch.setattr(module.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(module, "_line_of_cpuinfo", lambda *keys, text=listed: text)
        assert {name for name, is_there in processor_flags().items() if is_there} == expected


def test_a_system_that_tells_nothing_gives_no_flags(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(module, "_line_of_cpuinfo", lambda *keys: "")
    assert processor_flags() == {}
    assert environment()["flags"] == {}
