"""Settings: YAML, overrides, and errors that name the key."""

from __future__ import annotations

import pytest

from oasis.lab.config import RunConfig, override


def test_yaml_with_overrides(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("tasks: [bbc, tweets]\nlearning_rate: 5e-4\nratio: 1\nmemory: null\n")
    overrides = ["ratio=0.0625", "arrivals=[8, 24]", "policy_options.beta=0.9", "memory=100"]
    config = RunConfig.load(file, overrides)
    assert config.learning_rate == 5e-4 and config.ratio == 0.0625  # YAML reads 5e-4 as text
    assert config.arrivals_per_task == [8, 24] and config.memory == 100
    assert config.policy_options == {"beta": 0.9}
    assert RunConfig.load(file, ["tasks=bbc,reuters"]).tasks == ["bbc", "reuters"]


def test_saved_settings_load_again(tmp_path):
    config = RunConfig(tasks=["a", "b"], arrivals=[3, 4], policy_options={"beta": 0.5})
    config.save(tmp_path / "c.yaml")
    assert RunConfig.load(tmp_path / "c.yaml") == config
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ValueError, match="empty.yaml: the file is empty"):
        RunConfig.load(tmp_path / "empty.yaml")


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ValueError, match="lerning_rate: unknown setting; .* 'learning_rate'"):
        RunConfig.from_mapping({"lerning_rate": 1e-3})
    with pytest.raises(ValueError, match="unknown setting"):
        RunConfig.from_mapping(override({}, ["zzz=1"]))


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("ratio", 0, ValueError, r"ratio: got 0, expected a number in \(0, 1\]"),
        ("ratio", "much", TypeError, r"ratio: got 'much' \(str\), expected a number in"),
        (
            "batch_size",
            1.5,
            TypeError,
            r"batch_size: got 1.5 \(float\), expected an integer",
        ),
        ("batch_size", True, TypeError, r"batch_size: got True \(bool\), expected an integer"),
        ("batch_size", 0, ValueError, "batch_size: got 0, expected an integer from 1"),
        ("memory", 0, ValueError, "memory: got 0, expected an integer from 1"),
        ("memory", "x", TypeError, r"memory: got 'x' \(str\), expected an integer .*, or null"),
        ("tasks", [], ValueError, r"tasks: got \[\], expected .* at least one"),
        ("tasks", [1], TypeError, r"tasks: got 1 \(int\), expected a list of texts"),
        ("tasks", ["a", "a"], ValueError, r"tasks: got \['a', 'a'\], expected .* each once"),
        ("arrivals", [1, 2], ValueError, "arrivals: got 2 numbers, expected one or 3"),
        ("arrivals", 0, ValueError, "arrivals: got 0, expected an integer from 1"),
        ("evaluate", "some", ValueError, "evaluate: got 'some', expected one of seen, all"),
        ("layer", "body", ValueError, "layer: got 'body', expected one of head, last_block"),
        ("learning_rate", float("nan"), ValueError, "learning_rate: got nan, expected a number in"),
        ("save_steps", -1, ValueError, "save_steps: got -1, expected an integer from 0"),
        ("max_length", 1, ValueError, "max_length: got 1, expected an integer from 2"),
        ("cache_frozen", True, ValueError, "cache_frozen: nothing is frozen"),
        ("policy_options", {1: 2}, TypeError, "policy_options: got"),
    ],
)
def test_bad_values_name_the_key(key, value, error, message):
    with pytest.raises(error, match=message):
        RunConfig.from_mapping({key: value})


@pytest.mark.parametrize("text", ["ratio", "=3", "ratio=[1"])
def test_bad_overrides(text):
    with pytest.raises(ValueError, match="override: "):
        override({}, [text])


def test_a_file_that_is_no_mapping(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="got a list, expected lines of 'key: value'"):
        RunConfig.load(tmp_path / "list.yaml")


def test_the_decay_belongs_to_its_schedule():
    assert RunConfig(lr_schedule="warmup_stable_decay", decay_steps=5).decay_steps == 5
    for changes in ({"lr_schedule": "warmup_stable_decay"}, {"decay_steps": 5}):
        with pytest.raises(ValueError, match="decay_steps: got"):
            RunConfig(**changes)
    with pytest.raises(ValueError, match="lr_schedule: got 'step', expected one of cosine"):
        RunConfig(lr_schedule="step")


@pytest.mark.parametrize(
    "changes",
    [
        {"repeats": 1.0},
        {"off_task": "friends"},
        {"off_task": "bbc", "off_task_share": 0.1},
        {"accuracy": "mean"},
        {"data_seed": -1},
        {"cache_folder": "somewhere"},
    ],
)
def test_refused_settings_of_the_stream(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        RunConfig(**changes)


def test_where_rows_are_leaves_the_other_settings_of_data(tmp_path):
    config = RunConfig.put_together({}, ["data.test_share=0.3"], {"data": ["a.jsonl"]})
    assert (config.data.path, config.data.test_share) == (["a.jsonl"], 0.3)
    path = tmp_path / "run.yaml"
    path.write_text("data: {path: [a.jsonl], prompt: asked, completion: said}")
    data = RunConfig.load(path, ["data.rows=9"], {"data": ["b.jsonl"]}).data
    assert (data.path, data.prompt, data.rows) == (["b.jsonl"], "asked", 9)
    assert RunConfig.put_together({"data": "a.jsonl"}, [], {"data": ["b"]}).data.path == ["b"]
