"""Private attributes of other packages: in one file each, there, and inside the extra's bounds."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version
from sklearn.cluster import MiniBatchKMeans
from tiny_models import tiny_llama
from transformers import Trainer, TrainingArguments

from oasis.policies import sklearn_private
from oasis.train import transformers_private

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = {"transformers": transformers_private, "scikit-learn": sklearn_private}


def private(names) -> set[str]:
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def plain_trainer(tmp_path) -> Trainer:
    options = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none"}
    return Trainer(model=tiny_llama(), args=TrainingArguments(**options))


def fitted() -> MiniBatchKMeans:
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)).numpy()
    return MiniBatchKMeans(3, n_init=1, random_state=0).partial_fit(points)


def used(path: Path) -> set[str]:
    """Private names that a file reads, writes or defines on any object."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return private(attributes | {n.name for n in nodes if isinstance(n, ast.FunctionDef)})


@pytest.mark.parametrize("package", ADAPTERS)
def test_only_the_adapter_names_them(tmp_path, package):
    made = plain_trainer(tmp_path) if package == "transformers" else fitted()
    theirs = private([*dir(made), *vars(made)])
    adapter = Path(ADAPTERS[package].__file__)
    assert used(adapter) & theirs
    found = {
        path.name: used(path) & theirs
        for path in (ROOT / "oasis").rglob("*.py")
        if path.name != adapter.name and used(path) & theirs
    }
    assert found == {}


@pytest.mark.parametrize("package", ADAPTERS)
def test_what_the_adapter_names_is_there(tmp_path, package):
    made = [plain_trainer(tmp_path)] if package == "transformers" else [fitted()]
    if package == "transformers":
        made[0].model.gradient_checkpointing_enable()
        made.append(made[0].model.get_base_model().get_decoder().layers[0])  # a block
    there = {name for one in made for name in [*dir(one), *vars(one)]}
    assert used(Path(ADAPTERS[package].__file__)) <= there


@pytest.mark.parametrize("package", ADAPTERS)
def test_the_installed_version_lies_inside_the_bounds_of_the_extra(package):
    asked = [Requirement(line) for line in metadata.requires("oasis-select")]
    bounds = next(r.specifier for r in asked if r.name == package and "train" in str(r.marker))
    installed = Version(metadata.version(package))
    assert installed in bounds
    assert f"{installed.major + 1}.0" not in bounds
    checked = re.findall(r"\d+\.\d+\.\d+", ADAPTERS[package].__doc__)
    assert checked and all(version in bounds for version in checked)
    below = f"{Version(checked[0]).major}.{Version(checked[0]).minor - 1}"
    assert Version(checked[0]).minor == 0 or below not in bounds  # the oldest has been checked


def test_a_trainer_without_them_is_refused_at_the_import():
    lacking = type("Trainer", (), dict.fromkeys(transformers_private.METHODS[1:]))
    with pytest.raises(ImportError, match=r"Trainer has no _get_num_items_in_batch; expected"):
        transformers_private.check(lacking)


def test_a_restored_model_goes_on_bit_for_bit():
    first, second = fitted(), fitted()
    more = torch.randn(9, 3, generator=torch.Generator().manual_seed(1)).numpy()
    first.partial_fit(more)
    sklearn_private.load_state(second, sklearn_private.state_of(first))
    for model in (first, second):
        model.partial_fit(more[::-1].copy())
    assert (first.cluster_centers_ == second.cluster_centers_).all()
    assert (first._counts == second._counts).all()
