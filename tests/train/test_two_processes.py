"""Trainings on two processes: DDP, and FSDP2 with its shards."""

import os
import subprocess
import sys

import one_of_two
import pytest
import torch
from one_of_two import DRAWN, Keeping, sharded_model, small
from tiny_models import tiny_llama
from tiny_training import InOrder, Rows, arguments
from torch.distributed.fsdp import FullyShardedDataParallel

from oasis.names import COUNTERS
from oasis.train.batch.columns import TASK
from oasis.train.head import Head
from oasis.train.signals.compute import compute
from oasis.train.signals.sample_grads import SampleGradients, check_sharding


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What each of two processes found (see one_of_two.py)."""
    folder = tmp_path_factory.mktemp("both")
    worker = one_of_two.__file__
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *launch, worker, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def assert_trained_as_one(results, reference, tmp_path):
    """Against the plain trainer on what both selected. Step 1: rows 0 and 2 of rank 0. Step 2:
    nothing anywhere. Step 3: rows of both."""
    ours, theirs = results
    assert all(torch.equal(a, theirs["parameters"][n]) for n, a in ours["parameters"].items())
    plain = [
        {k: v[[0, 2]] for k, v in ours["seen"][0].items()},
        {k: torch.cat([v[:2], theirs["seen"][2][k][3:]]) for k, v in ours["seen"][2].items()},
    ]
    trainer = InOrder(
        model=reference,
        args=arguments(tmp_path, max_steps=2),
        train_dataset=Rows(1),
        batches=[{k: v for k, v in batch.items() if k != TASK} for batch in plain],
    )
    trainer.train()
    expected = [r["loss"] for r in trainer.state.log_history if "loss" in r]
    assert ours["losses"] == pytest.approx(expected, rel=1e-6) and len(expected) == 2
    parameters = dict(reference.named_parameters())
    for name, value in ours["parameters"].items():
        # Adam turns tiny gradients into whole steps: compare with the step size.
        assert (value - parameters[name]).abs().max() < 1e-2 * 1e-3, name


@pytest.mark.shows("Several processes", "DDP", "works")
@pytest.mark.shows("Several processes", "DDP with `reuse_forward`", "works")
@pytest.mark.shows("Several processes", "DDP with `score_with`", "works: each has all of it")
@pytest.mark.shows("Several processes", 'FSDP2, with `layer="last_block"` too', "works")
@pytest.mark.shows("Several processes", "`SFTTrainer` under DDP", "works")
@pytest.mark.parametrize(
    ("kind", "model"),
    [
        *(("ddp", tiny_llama), ("reuse", tiny_llama), ("beside", tiny_llama)),
        *(("fsdp", sharded_model), ("sft", tiny_llama)),
    ],
)
def test_two_processes_train_as_one_on_what_both_selected(both, kind, model, tmp_path):
    assert_trained_as_one([result[kind] for result in both], model(), tmp_path)


def test_each_process_scores_its_own_candidates_with_the_model_beside(both):
    for result in (found["beside"] for found in both):
        assert len(result["signals"]) == len(result["seen"]) == 3
        for batch, signals in zip(result["seen"], result["signals"], strict=True):
            batch = {key: value for key, value in batch.items() if key != TASK}
            expected = compute(small(), batch, Head(), frozenset({"gram"}))["gram"]
            assert (signals["gram"] - expected).abs().max() <= 1e-8 * expected.abs().max() > 0


@pytest.mark.shows(
    "Several processes",
    "`average_tokens_across_devices=False` where a process selects nothing",
    "works: the gradient is the mean over the processes that do",
)
def test_a_process_without_a_selection_does_not_shrink_the_gradient(both, tmp_path):
    ours = both[0]["apart"]
    trainer = InOrder(
        model=tiny_llama(),
        args=arguments(tmp_path, max_steps=1),
        train_dataset=Rows(1),
        batches=[{k: v[[0, 2]] for k, v in ours["seen"][0].items() if k != TASK}],
    )
    # With plain steps of gradient descent, a scale would show.
    trainer.train()
    parameters = trainer.model.state_dict()
    for name, value in ours["parameters"].items():
        assert (value - parameters[name]).abs().max() < 1e-2 * 1e-3, name


@pytest.mark.shows(
    "Several processes",
    "an `oasis.Selector` inside the model that DDP wraps",
    "works: each process keeps its own",
)
def test_a_selector_inside_the_model_stays_each_process_own(both):
    ours, theirs = (result["selector"] for result in both)
    seed = COUNTERS["seed"]
    assert [int(r["state"]["counters"][seed]) for r in (ours, theirs)] == [0, 1]
    assert not torch.equal(ours["state"]["statistics"], theirs["state"]["statistics"])
    for name, value in ours["parameters"].items():
        assert torch.equal(value, theirs["parameters"][name])


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "selector"])
def test_logged_counts_are_of_all_processes(both, kind):
    ours, theirs = (result[kind] for result in both)
    assert ours["logged"] == theirs["logged"]
    assert ours["logged"][-1] == ours["selected"] + theirs["selected"] > ours["selected"] > 0


@pytest.mark.shows(
    "Several processes",
    '`mode="fill"` where processes select at different rates',
    "works: all take as many candidate batches as the slowest needs",
)
def test_filling_goes_on_until_every_process_is_full(both):
    ours, theirs = (result["fill"] for result in both)
    assert ours["sizes"] == theirs["sizes"] == [4, 4]
    assert len(ours["seen"]) == len(theirs["seen"]) == 8
    assert (ours["waiting"], theirs["waiting"]) == (0, 8)
    for name, value in ours["parameters"].items():
        assert torch.equal(value, theirs["parameters"][name])


@pytest.mark.shows(
    "Several processes", "FSDP2, the first batch of a process without a label", "works"
)
def test_both_look_at_the_head_equally_often(both):
    ours, theirs = (result["fsdp"]["blank"] for result in both)
    assert len(ours["losses"]) == len(theirs["losses"]) > 0
    for name, value in ours["parameters"].items():
        assert torch.equal(value, theirs["parameters"][name])


@pytest.mark.parametrize("policy", DRAWN)
def test_processes_draw_independently_and_reproducibly(both, policy):
    # A policy by name. Random picks one row of four: two processes agree by chance in a quarter of
    # the twelve batches; in nine or more for one seed in 2,500. With one seed they always would.
    runs = [result[policy] for result in both]
    for first, again in runs:
        assert torch.equal(first["selected"], again["selected"])
        assert first["rehearsal"] == again["rehearsal"]
    ours, theirs = (run[0] for run in runs)
    assert ours["selected"].sum() == theirs["selected"].sum() == 12
    assert (ours["selected"] & theirs["selected"]).any(dim=1).sum() < 9
    if policy == "greats":
        assert ours["rehearsal"] != theirs["rehearsal"]


def test_sharded_weights_have_the_gradients_of_whole_ones(both):
    # Before the first step, and no process has what the other has.
    for result in (found["fsdp"] for found in both):
        batch = {key: value for key, value in result["seen"][0].items() if key != TASK}
        expected = compute(sharded_model(), batch, Head(), Keeping.needs, layer="last_block")
        for name, value in expected.items():
            got = result["signals"][0][name]
            assert value.abs().max() > 0
            assert (got - value).abs().max() <= 1e-5 * value.abs().max(), name
        assert all(s[name].abs().max() > 0 for s in result["signals"] for name in s)


def test_sharded_weights_that_are_not_of_linear_layers_are_refused(both):
    for result in (found["fsdp"] for found in both):
        assert "norm" in result["refused"] and "layer='head'" in result["refused"]


class Flat(FullyShardedDataParallel):
    """As FSDP1 looks, which itself needs a GPU."""

    def __init__(self, module):
        torch.nn.Module.__init__(self)
        self._fsdp_wrapped_module = module


def zero_3(model):
    next(model.parameters()).ds_id = 0  # how DeepSpeed marks them
    return model


@pytest.mark.parametrize(("shard", "named"), [(Flat, "FSDP1"), (zero_3, "ZeRO-3")])
def test_shards_that_show_no_gradient_of_a_sample_are_refused(shard, named):
    with pytest.raises(ValueError, match=f"{named}.*FSDP2.*layer='head'"):
        check_sharding(shard(sharded_model()))
    with (
        pytest.raises(ValueError, match=named),
        SampleGradients().watch(shard(sharded_model()), (1, 1)),
    ):
        pass
