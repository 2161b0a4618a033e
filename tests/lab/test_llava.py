"""The LLaVA JSON format: reading it, and batches with labels on the assistant's turns."""

import json

import pytest
import torch
from PIL import Image
from tiny_vision import MODELS
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from oasis.lab.data.llava import Conversation, LlavaCollator, read_llava
from oasis.train.batch.columns import COUNTS, TASK
from oasis.train.batch.images import count_images
from oasis.train.batch.subbatch import take
from oasis.train.scoring import inspect_head, score

WORDS = ["pad", "unk", "user", "bot", "end", "what", "is", "this", "a", "cat", "dog", "and", "now"]
WORDS += ["yes", "no", "both", "<image>"]
TEMPLATE = (
    "{% for m in messages %}{{ 'user ' if m.role == 'user' else 'bot ' }}"
    "{% for part in m.content %}{{ '<image>' if part.type == 'image' else part.text }}"
    "{{ ' ' }}{% endfor %}{{ 'end ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'bot ' }}{% endif %}"
)


def processor(side="right", template=TEMPLATE):
    """Four tokens for an image of 8 x 8; words at white space."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "unk"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="pad",
        unk_token="unk",
        padding_side=side,
        additional_special_tokens=["<image>"],
    )
    size = {"height": 8, "width": 8}
    images = CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False)
    return LlavaProcessor(
        images, tokenizer, patch_size=4, vision_feature_select_strategy="full",
        chat_template=template,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name, shade in (("a.png", 10), ("b.png", 120), ("c.png", 240)):
        Image.new("RGB", (8, 8), (shade, shade, shade)).save(tmp_path / name)
    entries = [
        {
            "id": "one",
            "image": "a.png",
            "conversations": [
                {"from": "human", "value": "<image>\nwhat is this"},
                {"from": "gpt", "value": "a cat"},
                {"from": "human", "value": "and now"},
                {"from": "gpt", "value": "a dog"},
            ],
        },
        {
            "id": 2,
            "conversations": [
                {"from": "human", "value": "what is a dog"},
                {"from": "gpt", "value": "this"},
            ],
        },
        {
            "id": "pair",
            "image": ["b.png", "c.png"],
            "conversations": [
                {"from": "human", "value": "is <image> a cat and <image>"},
                {"from": "gpt", "value": "both yes"},
            ],
        },
    ]
    (tmp_path / "data.json").write_text(json.dumps(entries), encoding="utf-8")
    return tmp_path


def words(ids):
    return " ".join(WORDS[i] for i in ids.tolist())


def test_reads_images_and_turns(folder):
    one, two, pair = read_llava(folder / "data.json")
    assert one.images == (folder / "a.png",) and two.images == ()
    assert pair.images == (folder / "b.png", folder / "c.png")
    assert [role for role, _ in one.turns] == ["user", "assistant"] * 2
    assert two.id == "2" and one.turns[1] == ("assistant", "a cat")
    assert [part["type"] for part in pair.messages()[0]["content"]] == [
        "text", "image", "text", "image",
    ]  # fmt: skip
    moved = read_llava(folder / "data.json", images=folder / "elsewhere")
    assert moved[0].images == (folder / "elsewhere" / "a.png",)


def test_images_without_marks_stand_first(tmp_path):
    turns = [{"from": "human", "value": "what"}, {"from": "gpt", "value": "a cat"}]
    entry = {"image": ["x", "y"], "conversations": turns}
    (tmp_path / "d.json").write_text(json.dumps([entry]))
    (talk,) = read_llava(tmp_path / "d.json")
    assert talk.turns[0][1] == "<image><image>\nwhat"


ASKED = [{"from": "human", "value": "what"}, {"from": "gpt", "value": "a cat"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"id": 1}, "expected a list"),
        ([{"id": 1}], "entry 0.*conversations"),
        ([{"conversations": [{"from": "robot", "value": "a"}]}], "entry 0.*robot.*human"),
        ([{"conversations": [{"from": "gpt", "value": None}]}], "entry 0.*a text"),
        (
            [{"image": "a", "conversations": [{"from": "human", "value": "<image> <image>"}]}],
            "1 images for 2 marks",
        ),
        ([{"conversations": [{"from": "human", "value": "<image>"}]}], "0 images for 1 marks"),
        ([{"image": 42, "conversations": ASKED}], 'entry 0: got 42 as "image", expected a path'),
        ([{"image": ["a", 1], "conversations": ASKED}], 'entry 0: got .* as "image"'),
        ([{"conversations": "what"}], 'entry 0: got a text as "conversations"'),
        ([{"conversations": []}], 'entry 0: got an empty list as "conversations"'),
        ([{"conversations": ["what"]}], r'entry 0, "conversations"\[0\]: got a text'),
        ([{"conversations": ASKED[::-1]}], "entry 0: .*is an answer .* without a question"),
        ([{"conversations": ASKED[:1]}], "entry 0: .*has no answer"),
        ([{"conversations": ASKED}, 3], "entry 1: got a number, expected an object"),
    ],
)
def test_what_is_not_the_format_is_refused(tmp_path, content, message):
    (tmp_path / "d.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_llava(tmp_path / "d.json")


def test_json_lines_and_a_byte_order_mark(tmp_path):
    entry = json.dumps({"conversations": ASKED})
    (tmp_path / "d.json").write_text(f"{entry}\n{entry}")
    with pytest.raises(ValueError, match="d.json: holds JSON lines"):
        read_llava(tmp_path / "d.json")
    (tmp_path / "d.json").write_bytes(f"[{entry}]".encode("utf-8-sig"))
    assert len(read_llava(tmp_path / "d.json")) == 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_labels_are_the_assistants_turns(folder, side):
    collate = LlavaCollator(processor(side))
    batch = collate(read_llava(folder / "data.json"))
    kept = [words(row[row != -100]) for row in batch["labels"]]
    assert kept == ["a cat end a dog end", "this end", "both yes end"]
    at = batch["labels"] != -100
    assert batch["labels"][at].equal(batch["input_ids"][at])
    attended = batch["attention_mask"].sum(1)
    assert attended.tolist() == (batch["input_ids"] != 0).sum(1).tolist()
    edge = batch["attention_mask"][:, -1 if side == "left" else 0]
    assert edge.tolist() == [1, 1, 1]
    assert batch[COUNTS].tolist() == [1, 0, 2] and batch["pixel_values"].shape[0] == 3
    assert batch["pixel_values"][:, 0, 0, 0].diff().gt(0).all()  # in the samples' order


def test_images_in_an_answer_are_not_labels(folder):
    turns = (("user", "what is this"), ("assistant", "<image>\na cat"))
    batch = LlavaCollator(processor())([Conversation("x", (folder / "a.png",), turns)])
    labels = batch["labels"][0]
    assert words(labels[labels != -100]) == "a cat end"
    assert (batch["input_ids"] == WORDS.index("<image>")).sum() == 4


def test_a_batch_of_it_is_scored_and_cut(folder):
    model = MODELS["llava"](torch.float32)
    token = model.config.image_token_id
    collate = LlavaCollator(processor())
    talks = read_llava(folder / "data.json")
    batch = collate([{"conversation": t, TASK: i} for i, t in enumerate(talks)])
    assert batch.pop(TASK).tolist() == [0, 1, 2]
    for key in ("input_ids", "labels"):
        batch[key] = batch[key].masked_fill(batch[key] == WORDS.index("<image>"), token)
    batch = count_images(batch, model.config)
    whole = score(model, batch, inspect_head(model, batch)).loss
    for row in range(3):
        alone = take(batch, [row])
        assert torch.isclose(
            score(model, alone, inspect_head(model, alone)).loss[0], whole[row], rtol=1e-4
        )


def test_refused_batches(folder):
    talks = read_llava(folder / "data.json")
    with pytest.raises(ValueError, match="empty batch"):
        LlavaCollator(processor())([])
    with pytest.raises(ValueError, match="'one'.*max_length=5"):
        LlavaCollator(processor(), max_length=5)(talks)
    rewriting = "{{ ['what ', 'is '][messages|length % 2] }}" + TEMPLATE
    with pytest.raises(ValueError, match="template that only appends"):
        LlavaCollator(processor(template=rewriting))(talks)
    gone = Conversation("x", (folder / "gone.png",), (("user", "<image>"), ("assistant", "a")))
    with pytest.raises(FileNotFoundError, match="gone.png"):
        LlavaCollator(processor())([gone])
