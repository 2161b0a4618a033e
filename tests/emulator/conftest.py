"""The emulated device, one process per sanitizer and session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .device import Device

# What the compiler made of the kernels can only be read where there is a compiler; CI has one.
collect_ignore = [] if shutil.which("nvcc") else ["test_resources.py"]


HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    """In one process, where tests run in several: each would compile a device of its own."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.xdist_group("emulator"))


@pytest.fixture(scope="session")
def address_device():
    """kernels/cuda under AddressSanitizer and UndefinedBehaviorSanitizer."""
    device = Device("address")
    yield device
    device.close()


@pytest.fixture(scope="session")
def thread_device():
    """kernels/cuda under ThreadSanitizer."""
    device = Device("thread")
    yield device
    device.close()


@pytest.fixture
def device(address_device):
    address_device.configure()
    return address_device


@pytest.fixture
def tsan(thread_device):
    thread_device.configure()
    return thread_device
