"""Samples to token ids: what is learnt, what asks for it, what is cut."""

import pytest
from tiny_text import tokenizer as plain_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from oasis.lab.data.encoding import answer_ids, encode
from oasis.lab.data.own.encoder import Encoder
from oasis.lab.data.own.fields import Sample
from oasis.lab.data.own.tokens import NothingLeft, encode_sample
from oasis.lab.data.tasks import Example
from oasis.names import IGNORED

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# Writes anew what an earlier answer was, as templates do that take thoughts out of it.
REWRITES = TEMPLATE.replace(
    "{{ m['content'] }}",
    "{% if m['role'] == 'assistant' and not loop.last %}red{% else %}{{ m['content'] }}{% endif %}",
)


def characters(*, bos=True, eos=False, space=False, template=None):
    """A token for each character; adds BOS, EOS, or a space token before the first word."""
    letters = [chr(c) for c in range(32, 127)] + ["\n", "▁"]
    names = ["<pad>", "<s>", "</s>", "<unk>", *letters]
    core = Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, [], unk_token="<unk>"))
    if space:  # as Llama's SentencePiece
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        core.decoder = decoders.Metaspace()
    if bos or eos:
        single = f"{'<s> ' * bos}$A{' </s>' * eos}"
        core.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    made.chat_template = template
    return made


ALL = [
    {"bos": bos, "eos": eos, "space": space}
    for bos in (True, False)
    for eos in (True, False)
    for space in (True, False)
]


def text_of(tokenizer, ids):
    return "".join(tokenizer.convert_ids_to_tokens(ids)).replace("▁", " ")


def learnt(tokenizer, encoded):
    return text_of(tokenizer, [label for label in encoded.labels if label != IGNORED])


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_one_separator_and_no_eos_before_the_answer(kind):
    tokenizer = characters(**kind)
    first = "<s>" * kind["bos"] + " " * kind["space"]
    item = encode(Example("Is it?", "yes"), tokenizer, 64, eos=True)
    assert text_of(tokenizer, item["input_ids"]) == f"{first}Is it? yes</s>"
    assert text_of(tokenizer, [i for i in item["labels"] if i != IGNORED]) == " yes</s>"
    assert text_of(tokenizer, answer_ids("yes", tokenizer)) == " yes"
    pair = Sample("k", "pair", (("user", "Is it?\n"), ("assistant", "yes\n no")))
    encoded = encode_sample(pair, tokenizer, 64)
    assert text_of(tokenizer, encoded.ids) == f"{first}Is it?\nyes\n no</s>"
    assert learnt(tokenizer, encoded) == "yes\n no</s>"


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_a_long_prompt_loses_its_beginning_but_no_bos(kind):
    tokenizer = characters(**kind)
    first = "<s>" * kind["bos"]
    length = len("mnop yes") + kind["bos"]
    item = encode(Example("abcdefghijklmnop", "yes"), tokenizer, length)
    assert text_of(tokenizer, item["input_ids"]) == f"{first}mnop yes"
    pair = Sample("k", "pair", (("user", "abcdefghijklmnop"), ("assistant", "yes")))
    encoded = encode_sample(pair, tokenizer, length + 1)
    assert text_of(tokenizer, encoded.ids) == f"{first}mnop yes</s>"
    assert encoded.cut == 12 + kind["space"]


def test_an_answer_that_is_too_long_by_itself_loses_its_end():
    tokenizer = characters()
    pair = Sample("k", "pair", (("user", "abc"), ("assistant", "0123456789")))
    encoded = encode_sample(pair, tokenizer, 8)
    assert text_of(tokenizer, encoded.ids) == "<s>c 01234"
    assert learnt(tokenizer, encoded) == " 01234" and encoded.cut == 8
    with pytest.raises(NothingLeft, match="of 16 tokens too few are left"):
        encode_sample(pair, tokenizer, 1)


def test_a_text_is_learnt_from_its_first_token_to_its_last():
    tokenizer = characters(eos=True)
    encoded = encode_sample(Sample("k", "text", (("assistant", "hello"),)), tokenizer, 64)
    assert text_of(tokenizer, encoded.ids) == "<s>hello</s>"
    assert learnt(tokenizer, encoded) == "hello</s>" and encoded.labels[0] == IGNORED
    cut = encode_sample(Sample("k", "text", (("assistant", "hello"),)), tokenizer, 4)
    assert text_of(tokenizer, cut.ids) == "<s>hel" and cut.cut == 3


TALK = (("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))


def test_turns_are_what_the_chat_template_makes_of_them():
    tokenizer = characters(template=TEMPLATE)
    encoded = encode_sample(Sample("k", "chat", TALK), tokenizer, 256)
    whole = "<s><system>S<end><user>a<end><assistant>b<end><user>c<end><assistant>d<end>"
    assert text_of(tokenizer, encoded.ids) == whole
    assert learnt(tokenizer, encoded) == "b<end>d<end>" and not encoded.last_only


def test_a_template_that_rewrites_earlier_turns_leaves_the_last_answer():
    tokenizer = characters(template=REWRITES)
    encoded = encode_sample(Sample("k", "chat", TALK), tokenizer, 256)
    assert learnt(tokenizer, encoded) == "d<end>" and encoded.last_only


def test_a_template_that_does_not_take_the_turns_is_named_with_the_row():
    tokenizer = characters(template="{{ raise_exception('System role not supported') }}")
    with pytest.raises(ValueError, match="rows.jsonl:3: .*System role not supported"):
        encode_sample(Sample("rows.jsonl:3", "chat", TALK), tokenizer, 256)


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_turns_without_a_template_are_written_with_their_names(kind):
    tokenizer = characters(**kind)
    encoded = encode_sample(Sample("k", "chat", TALK), tokenizer, 256)
    first = "<s>" * kind["bos"] + " " * kind["space"]
    text = "System: S\nUser: a\nAssistant: b</s>User: c\nAssistant: d</s>"
    assert text_of(tokenizer, encoded.ids) == first + text
    assert learnt(tokenizer, encoded) == " b</s> d</s>"


def test_pairs_in_the_chat_template_and_turns_without_it():
    pair = Sample("k", "pair", (("user", "a"), ("assistant", "b")))
    tokenizer = characters(template=TEMPLATE)
    asked = encode_sample(pair, tokenizer, 256, chat=True)
    assert text_of(tokenizer, asked.ids) == "<s><user>a<end><assistant>b<end>"
    assert text_of(tokenizer, encode_sample(pair, tokenizer, 256).ids) == "<s>a b</s>"
    plain = encode_sample(Sample("k", "chat", pair.turns), tokenizer, 256, chat=False)
    assert text_of(tokenizer, plain.ids) == "<s>User: a\nAssistant: b</s>"
    with pytest.raises(ValueError, match="data.chat: got true, but the tokenizer has no"):
        encode_sample(pair, plain_tokenizer(), 256, chat=True)


def test_choices_follow_as_the_answer_does():
    pair = Sample("k", "pair", (("user", "a"), ("assistant", "b")))
    for tokenizer, chat, expected in (
        (characters(), None, [" yes</s>", " no</s>"]),
        (characters(space=True), None, [" yes</s>", " no</s>"]),
        (characters(template=TEMPLATE), True, ["yes<end>", "no<end>"]),
    ):
        found = Encoder(tokenizer, 256, chat).choices(pair, ["yes", "no"])
        assert [text_of(tokenizer, ids) for ids in found] == expected
