"""The emulated device, one process per sanitizer and session."""

from __future__ import annotations

import pytest

from .device import Device


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
