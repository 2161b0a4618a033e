"""Padding on either side has no influence: on scores, signals, gradients and the training loss."""

import pytest
import torch
from padded_rows import padded
from tiny_models import PAD, VOCAB, tiny_model, with_lora

from oasis.lab.data.encoding import Collator
from oasis.lab.density import FeatureSpace
from oasis.lab.evaluate import _by_first_token
from oasis.train.batch.columns import COUNTS
from oasis.train.batch.subbatch import right_padded, take
from oasis.train.frozen.prefix import freeze_below
from oasis.train.head import Head
from oasis.train.loss import summed_cross_entropy
from oasis.train.models import unwrap
from oasis.train.scoring import inspect_head, score
from oasis.train.signals.compute import compute

KINDS = {
    "gemma2": {"head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 1.5},
    "gemma3_text": {"head_dim": 8, "sliding_window": 4},
    "llama": {},
    "qwen2": {},
    "gpt2": {},
    "opt": {"word_embed_proj_dim": 32},
}
LINEAR = {"gpt2": ["c_attn"], "opt": ["q_proj", "fc1"]}
KINDS_AND_ATTENTION = [
    (kind, attention)
    for kind in KINDS
    for attention in ("eager", "sdpa")
    if (kind, attention) != ("gemma2", "sdpa")  # transformers has none
]
FORWARD = frozenset({"gram", "loss", "entropy", "el2n", "features", "features_multi"})
BACKWARD = frozenset({"gram", "full_grads", "middle_grads"})


def family(kind, attention="eager", dtype=torch.float64):
    return tiny_model(kind, dtype=dtype, attn_implementation=attention, **KINDS[kind])


def trained(kind, attention="eager"):
    return with_lora(family(kind, attention), LINEAR.get(kind, ["q_proj", "down_proj"]))


def same(a, b, tolerance=1e-5):
    assert a.isfinite().all() and a.abs().max() > 0
    assert (a - b).abs().max() <= tolerance * a.abs().max()


# float64, since eager attention computes softmax in float32, where float64's lowest number is -inf:
# rows of padding on the left, that attend to nothing, become NaN, and 0 x NaN reaches every row.
@pytest.mark.shows(
    "Families of models",
    "positions of their own for each place (GPT-2, OPT), padding on the left",
    "works: a sample counts as it does alone, with positions from its first token on",
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("kind", "attention"), KINDS_AND_ATTENTION)
def test_scores_do_not_depend_on_the_side_of_the_padding(kind, attention, dtype):
    model = family(kind, attention, dtype)
    left, right = (score(model, b, inspect_head(model, b)) for b in map(padded, ("left", "right")))
    assert inspect_head(model, padded("left")) == inspect_head(model, padded("right"))
    for name in ("gram", "loss", "entropy", "el2n"):
        same(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize("kind", KINDS)
def test_no_signal_and_no_gradient_depends_on_the_side_of_the_padding(kind):
    model = trained(kind)
    head = inspect_head(model.eval(), padded("left"))
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for side in ("left", "right"):
        batch = padded(side)
        signals = compute(model, batch, head, FORWARD)
        by_layer = compute(model, batch, head, BACKWARD, layer="last_block")
        loss = summed_cross_entropy(model, take(batch, [0, 1, 4]))[0]
        grads = torch.autograd.grad(loss, parameters)
        found.append(
            [*signals.values(), *by_layer.values(), loss, torch.cat([g.flatten() for g in grads])]
        )
    for a, b in zip(*found, strict=True):
        same(a, b)


def test_cached_blocks_know_a_text_by_either_side():
    model, batches = tiny_model("llama", num_hidden_layers=5), list(map(padded, ("left", "right")))
    plain = compute(model, batches[1], Head(), FORWARD)
    prefix = freeze_below(model, 3, PAD)
    found = [compute(model, batch, Head(), FORWARD) for batch in batches]
    assert len(prefix.states) == 5
    for name, value in plain.items():
        same(found[0][name], value)
        same(found[1][name], value)
    # Given as they come, with the mask that the backbone is called with.
    given = []
    for batch in batches:
        prefix.attention_mask = batch["attention_mask"]
        given.append(prefix(batch["input_ids"]))
    left, right = given
    for row, (a, b) in enumerate(zip(*(b["attention_mask"].bool() for b in batches), strict=True)):
        assert torch.equal(left[row, a], right[row, b])
    assert len(prefix.states) == 5


@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.parametrize("masked", [True, False], ids=["the text's mask", "a mask of ones"])
def test_cached_blocks_know_a_text_that_begins_or_ends_with_the_padding_id(masked, batch_size):
    # Many tokenizers pad with their BOS or EOS.
    model = tiny_model("llama", num_hidden_layers=5)
    texts = [[PAD, 7, 8, 9], [7, 8, 9, PAD], [PAD, 5, PAD, 6, PAD], [4, 3]]
    wanted = [model(input_ids=torch.tensor([text])).logits[0] for text in texts]
    prefix = freeze_below(model, 3, PAD)
    prefix.batch_size = batch_size
    for padding in (0, 1, 3):  # more of it, in another batch
        length = 5 + padding
        ids, mask = torch.full((4, length), PAD), torch.zeros(4, length, dtype=torch.long)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = torch.tensor(text), 1
        attention_mask = mask if masked else torch.ones_like(mask)
        got = model(input_ids=ids, attention_mask=attention_mask).logits
        for row, text in enumerate(texts):
            same(got[row, : len(text)], wanted[row])
    assert len(prefix.states) == 4


def test_cached_blocks_take_as_many_ends_as_the_mask_says():
    model, text = tiny_model("llama", num_hidden_layers=5), [6, 7, PAD, PAD]
    wanted = model(input_ids=torch.tensor([text])).logits[0]
    freeze_below(model, 3, PAD)
    ids = torch.tensor([[*text, PAD, PAD]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    same(model(input_ids=ids, attention_mask=mask).logits[0, :4], wanted)


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_hidden_states_that_predict_no_label_have_no_influence(value, gather):
    model, batch = trained("llama"), padded("right")
    unwrap(model).get_output_embeddings().weight.requires_grad_()
    head, needs = Head(gather=gather), FORWARD - {"features_multi", "features"}
    clean = [
        compute(model, batch, head, n, layer=la)
        for n, la in ((needs, "head"), (BACKWARD, "last_block"))
    ]
    label = batch["labels"].roll(-1, dims=1) != -100

    def spoil(module, args):
        hidden = args[0]
        if hidden.shape[:2] != label.shape:
            return None
        return (hidden.masked_fill(~label[:, :, None], value),)

    unwrap(model).get_output_embeddings().register_forward_pre_hook(spoil)
    got = [
        compute(model, batch, head, n, layer=la)
        for n, la in ((needs, "head"), (BACKWARD, "last_block"))
    ]
    for a, b in zip(clean, got, strict=True):
        for name in a:
            assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_padding_has_no_part_in_features(value):
    model, batch = tiny_model("llama"), padded("left")
    clean = compute(model, batch, Head(), FORWARD)
    padding = right_padded(batch)["attention_mask"] == 0

    def spoil(module, args, output):
        return output.masked_fill(padding[:, :, None], value)

    model.model.layers[-1].register_forward_hook(spoil)
    model.model.norm.register_forward_hook(spoil)
    got = compute(model, batch, Head(), FORWARD)
    for name in clean:
        assert torch.equal(clean[name], got[name]), name


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "llama"])
def test_evaluation_of_a_prompt_does_not_depend_on_its_batch(kind):
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 40, (24,), generator=g).tolist()
    prompts = [torch.randint(1, VOCAB, (n,), generator=g).tolist() for n in lengths]
    items = [{"input_ids": prompt, "labels": prompt} for prompt in prompts]
    model, collate = family(kind).eval(), Collator(PAD, "right")
    if kind == "gpt2":  # positions that matter
        torch.nn.init.normal_(model.transformer.wpe.weight, std=0.3)
    with torch.no_grad():
        alone, together = (
            _by_first_token(model, collate, items, list(range(3, 40)), size) for size in (1, 24)
        )
    assert alone == together and len(set(alone)) > 3


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "llama"])
def test_features_of_a_text_do_not_depend_on_its_batch(kind):
    g = torch.Generator().manual_seed(0)
    texts = [torch.randint(1, VOCAB, (n,), generator=g).tolist() for n in (3, 20, 11)]
    items = [{"input_ids": ids, "labels": ids} for ids in texts]
    model = family(kind).eval()
    space = FeatureSpace(items, Collator(PAD), model, None)
    for number, ids in enumerate(texts):
        alone = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1].mean(dim=1)
        same(space[[number]], torch.nn.functional.normalize(alone.float()))


def test_rows_move_to_the_first_column_with_all_that_is_said_of_their_tokens():
    batch = {
        "input_ids": torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4], [7, 8, 0, 0], [0, 0, 0, 0]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1] * 4, [1, 1, 0, 0], [0] * 4]),
        # A label on padding, and one on the first token, which only padding could predict.
        "labels": torch.tensor([[9, 9, 5, 6], [1, 2, 3, 4], [-100, 8, -100, -100], [-100] * 4]),
        "token_type_ids": torch.tensor([[0, 0, 1, 2]] * 4),
        "cross": torch.arange(16).view(4, 4, 1).expand(4, 4, 2),
        COUNTS: torch.tensor([1, 0, 0, 0]),
        "pixel_values": torch.arange(64.0).view(4, 4, 2, 2),
    }
    got = right_padded(batch)
    assert got["input_ids"].tolist() == [[5, 6, 0, 0], [1, 2, 3, 4], [7, 8, 0, 0], [0] * 4]
    assert got["attention_mask"].tolist() == [[1, 1, 0, 0], [1] * 4, [1, 1, 0, 0], [0] * 4]
    assert got["labels"].tolist()[0] == [5, 6, -100, -100]
    assert got["labels"].tolist()[1:] == batch["labels"].tolist()[1:]
    assert got["token_type_ids"].tolist()[0] == [1, 2, 0, 0]
    assert got["cross"][0, :, 0].tolist() == [2, 3, 0, 1]
    assert torch.equal(got["pixel_values"], batch["pixel_values"])
    assert right_padded(got) is got
    without = {key: value for key, value in batch.items() if key != "attention_mask"}
    assert right_padded(without) is without
