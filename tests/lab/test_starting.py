"""Ctrl-C while the command line is being loaded."""

import signal
import subprocess
import sys
import threading

import pytest

from oasis import starting
from oasis.starting import Interruptible, Terminable, Terminated, begun, is_command, status

# Imported one after another, from the first of the package to the settings of a run.
MOMENTS = [
    "importlib.metadata",
    "torch.types",
    "torch.nn.functional",
    "oasis.gram.head",
    "oasis.extra",
    "typer.core",
    "oasis.commands",
    "pydantic",
    "oasis.lab.settings.kinds",
]


def interrupted_after(module, command):
    """(exit status, standard error) of a command interrupted as soon as it has that module."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "oasis", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Shells have what they start in the background ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in process.stderr:
        if line.rpartition("|")[2].strip() == module:
            process.send_signal(signal.SIGINT)
            break
    said = [line for line in process.communicate()[1].splitlines() if "import time:" not in line]
    return process.returncode, "\n".join(said).strip()


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("module", MOMENTS)
def test_ctrl_c_is_one_line_whatever_is_being_imported(module):
    found = interrupted_after(module, ["train", "--help-settings"])
    assert found == (130, "error: interrupted")


@pytest.mark.parametrize(
    ("argv", "started", "expected"),
    [
        (["/usr/bin/oasis", "train"], ["python", "/usr/bin/oasis", "train"], True),
        (["oasis.exe"], ["oasis.exe"], True),
        (["-m", "train"], ["python", "-m", "oasis", "train"], True),
        (["/usr/bin/oasis"], ["python", "-c", "...", "--multiprocessing-fork"], False),
        (["/home/me/train.py"], ["python", "train.py"], False),
        ([""], ["python"], False),
        ([], ["python"], False),
    ],
)
def test_a_command_is_known_by_how_it_was_started(monkeypatch, argv, started, expected):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", started)
    assert is_command() is expected


@pytest.fixture
def python_own():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_it_ends_with_the_block_or_as_the_command_begins(python_own):
    with Interruptible(command=True):
        assert python_own() is starting._end
        with Interruptible(command=True):
            assert python_own() is starting._end
    assert python_own() is signal.default_int_handler
    with Interruptible(command=True):
        begun()
        assert python_own() is signal.default_int_handler
    with Interruptible(command=False):
        assert python_own() is signal.default_int_handler


def test_a_handler_of_ones_own_stays(python_own):
    for own in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signal.SIGINT, own)
        with Interruptible(command=True):
            assert python_own() is own
        assert python_own() is own


def test_sigterm_is_raised_once_and_only_inside():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Terminated) as stopped, Terminable():
            signal.raise_signal(signal.SIGTERM)
        assert (status(stopped.value), status(KeyboardInterrupt())) == (143, 130)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with Terminable():
            with pytest.raises(Terminated), Terminable():
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # while things are put in order
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with Terminable():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_leaves_it_alone(python_own):
    def enter():
        with Interruptible(command=True):
            found.append(python_own())

    found = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler] == [python_own()]
