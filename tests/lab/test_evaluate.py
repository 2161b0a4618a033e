"""Accuracy by likelihood against a plain loop, A_last and A_avg, and the frozen prefix."""

from __future__ import annotations

import pytest
import tiny_text
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oasis.lab import model as models
from oasis.lab.data.encoded import encode_examples, encode_task
from oasis.lab.data.encoding import Collator, answer_ids, encode
from oasis.lab.data.tasks import Example, Task
from oasis.lab.device import choose_device, choose_dtype
from oasis.lab.evaluate import choice_accuracy, generated_score, held_out_loss
from oasis.lab.record.accuracy import a_avg, a_last
from oasis.names import IGNORED
from oasis.train.frozen.prefix import freeze_below


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_text.tokenizer()


@torch.no_grad()
def one_by_one(model, tokenizer, task) -> float:
    """The literal definition: sum of log-probabilities of the choice's tokens, row by row."""
    hits = 0
    for example in task.test:
        prompt = tokenizer(example.prompt)["input_ids"]
        scores = []
        for choice in task.choices:
            ids = answer_ids(choice, tokenizer)
            log_p = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
            scores.append(sum(log_p[len(prompt) + k - 1, token] for k, token in enumerate(ids)))
        hits += task.choices[int(torch.stack(scores).argmax())] == example.answer
    return hits / len(task.test)


@pytest.mark.parametrize(
    "choices", [("red", "green", "blue"), ("red", "red cat", "red dog", "blue cat")]
)
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_equals_the_plain_loop(tokenizer, choices, batch_size):
    task = tiny_text.task("colours", choices, test=20)
    for seed in range(2):
        model = tiny_text.model(seed=seed)
        got = choice_accuracy(model, tokenizer, encode_task(task, tokenizer, 64), batch_size)
        with torch.no_grad():
            assert got == one_by_one(model, tokenizer, task)


def test_of_all_logits_only_those_of_the_choices_are_copied(tokenizer):
    task = encode_task(tiny_text.task("long", ("red", "red cat"), test=8), tokenizer, 64)
    model, whole = tiny_text.model().to(torch.bfloat16), []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made = isinstance(out, torch.Tensor) and out.ndim == 3 and not func.is_view
            if made and out.shape[-1] == len(tiny_text.WORDS):
                whole.append(str(func))
            return out

    with Sizes():
        choice_accuracy(model, tokenizer, task, 16)
    assert len(whole) == 1  # what the model itself makes


def test_macro_accuracy_and_the_first_examples(tokenizer):
    task = tiny_text.task("colours", ("red", "green", "blue"), test=24)
    model = tiny_text.model(seed=1)
    part = Task(task.name, task.choices, [], task.test[:11])
    by_answer = {}
    for example in part.test:
        alone = Task(task.name, task.choices, [], [example])
        by_answer.setdefault(example.answer, []).append(one_by_one(model, tokenizer, alone))
    assert len({len(group) for group in by_answer.values()}) > 1  # else macro is micro
    expected = sum(sum(group) / len(group) for group in by_answer.values()) / len(by_answer)
    encoded = encode_task(task, tokenizer, 64)
    got = choice_accuracy(model, tokenizer, encoded, held_out=11, average="macro")
    assert got == pytest.approx(expected, abs=1e-12)
    with torch.no_grad():
        assert choice_accuracy(model, tokenizer, encoded, held_out=11) == one_by_one(
            model, tokenizer, part
        )
    with pytest.raises(ValueError, match="average: got 'mean'"):
        choice_accuracy(model, tokenizer, encoded, average="mean")


def test_training_mode_is_put_back(tokenizer):
    model = tiny_text.model().train()
    task = encode_task(tiny_text.task("a", ("red", "green")), tokenizer, 64)
    choice_accuracy(model, tokenizer, task)
    assert model.training


@torch.no_grad()
def test_held_out_loss_is_the_mean_over_label_tokens(tokenizer):
    examples = [Example("one two", "red"), Example("three", "cat dog cat"), Example("four", "dog")]
    items = encode_examples(examples, tokenizer, 64, eos=True)
    model = tiny_text.model()
    losses = []
    for item in items:
        logits = model(torch.tensor([item["input_ids"]])).logits[0].double()
        targets = torch.tensor(item["labels"][1:])
        kept = targets != IGNORED
        losses += (-logits[:-1].log_softmax(-1))[kept, targets[kept]].tolist()
    assert len(losses) == 2 + 4 + 2
    for batch_size in (1, 2, 8):
        got = held_out_loss(model, tokenizer, items, batch_size)
        assert got == pytest.approx(sum(losses) / 8, rel=1e-5)


def test_generated_texts_are_scored(tokenizer):
    model = tiny_text.model(seed=3)
    examples = [Example("one two", "red"), Example("three four five", "cat dog")]
    items = encode_examples(examples, tokenizer, 64, eos=True)
    texts = []
    for example in examples:
        ids = tokenizer(example.prompt)["input_ids"]
        for _ in range(4):  # as the longest answer has three tokens
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
        prompt = len(tokenizer(example.prompt)["input_ids"])
        texts.append(tokenizer.decode(ids[prompt:], skip_special_tokens=True).strip())
    for text, item in zip(texts, items, strict=True):
        item["answer"] = text
    assert generated_score(model, tokenizer, items, "exact", 2) == 1.0
    items[0]["answer"] = "no such text"
    assert generated_score(model, tokenizer, items, "exact", 1) == 0.5


def test_averages():
    history = [{"a": 0.5}, {"a": 0.25, "b": 0.75}, {"a": 0.3, "b": 0.6, "c": 0.9}]
    assert a_last(history, ["a", "b", "c"]) == pytest.approx(0.6)
    assert a_avg(history, ["a", "b", "c"]) == pytest.approx((0.5 + 0.5 + 0.6) / 3)
    with pytest.raises(ValueError, match="history: got 3 boundaries, expected 2"):
        a_avg(history, ["a", "b"])


def test_averages_are_over_the_tasks_that_have_an_accuracy():
    history = [{}, {"b": 0.75}, {"b": 0.5, "c": 0.7}]
    assert a_last(history, ["a", "b", "c"]) == pytest.approx(0.6)
    assert a_avg(history, ["a", "b", "c"]) == pytest.approx((0.75 + 0.6) / 2)
    assert a_last([{}], ["a"]) is None and a_avg([{}], ["a"]) is None


def encoded_batch(tokenizer):
    items = tiny_text.task("a", ("red", "green"), train=6).train
    return Collator(0)([encode(item, tokenizer) for item in items])


def test_frozen_prefix_changes_nothing_but_the_work(tokenizer):
    batch = encoded_batch(tokenizer)
    model = tiny_text.model(layers=4)
    model = models.attach_lora(model, rank=2, alpha=None, layers=2, seed=0).unload()
    plain = models.attach_lora(model, rank=2, alpha=None, layers=2, seed=0)
    expected = plain(**batch)
    expected.loss.backward()
    gradients = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    assert gradients and all(".layers.2." in n or ".layers.3." in n for n in gradients)
    prefix = freeze_below(plain.unload(), 2, 0)
    cached = models.attach_lora(model, rank=2, alpha=None, layers=2, seed=0)
    for _ in range(2):  # the second time from the cache
        cached.zero_grad()
        got = cached(**batch)
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(got.logits[real], expected.logits[real], rtol=1e-4, atol=1e-4)
        got.loss.backward()
        ours = {n: p.grad for n, p in cached.named_parameters() if p.grad is not None}
        assert ours.keys() == gradients.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], gradients[name], rtol=1e-4, atol=1e-5)
    assert len(prefix.states) == 6
    assert prefix.weight is model.lm_head.weight


def test_frozen_prefix_takes_fully_padded_rows(tokenizer):
    model = tiny_text.model(layers=3)
    freeze_below(model, 1, 0)
    ids = torch.tensor([[0, 0, 0], [0, 3, 4]])
    logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits
    assert logits[1].isfinite().all()


def test_frozen_prefix_refuses():
    model = tiny_text.model(layers=3)
    with pytest.raises(ValueError, match="blocks: got 3, expected 1 to 2"):
        freeze_below(model, 3, 0)
    with pytest.raises(TypeError, match="Linear is not laid out as"):
        freeze_below(torch.nn.Linear(2, 2), 1, 0)

    class Scaled(type(model.model)):
        def forward(self, input_ids=None, **kwargs):
            kwargs["inputs_embeds"] = 3 * self.embed_tokens(input_ids)
            return super().forward(**kwargs)

    layers = model.model.layers
    model.model.__class__ = Scaled
    with pytest.raises(ValueError, match="gives other logits"):
        freeze_below(model, 1, 0)
    assert model.model.layers is layers  # as it was


@pytest.mark.parametrize(("layers", "carrying"), [(None, {0, 1, 2}), (3, {0, 1, 2}), (1, {2})])
def test_lora_on_the_top_blocks(layers, carrying):
    model = models.attach_lora(tiny_text.model(), rank=2, alpha=None, layers=layers, seed=0)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert {int(name.split(".layers.")[1].split(".")[0]) for name in names} == carrying
    assert len(names) == 2 * 7 * len(carrying)  # A and B of q, k, v, o, gate, up, down


def test_lora_is_seeded_and_leaves_the_global_generator_alone():
    def weights(seed):
        model = models.attach_lora(tiny_text.model(), rank=2, alpha=None, layers=1, seed=seed)
        return torch.cat([p.flatten() for p in model.parameters() if p.requires_grad])

    torch.manual_seed(5)
    first = weights(0)
    assert torch.equal(first, weights(0)) and not torch.equal(first, weights(1))
    with pytest.raises(ValueError, match="lora_layers: got 4, expected null or 1 to 3"):
        models.attach_lora(tiny_text.model(), rank=2, alpha=None, layers=4, seed=0)


def test_dtype_and_device():
    cpu = choose_device("cpu")
    assert choose_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    assert choose_dtype("bfloat16", cpu) is torch.bfloat16
    assert choose_device("auto").type in ("cpu", "cuda")
    assert choose_device("cpu:0").type == "cpu"
    for wrong in ("int64", "nn", "half a byte", "float8_e4m3fn", "", "dtype", "Tensor"):
        with pytest.raises(ValueError, match="dtype: got"):
            choose_dtype(wrong, cpu)
    for wrong in ("cuda:99", "gpu", "cpu:1", "meta", "", "hpu", "cpu:-1"):
        with pytest.raises(ValueError, match="device: got .* expected 'auto' or one of .*cpu"):
            choose_device(wrong)
