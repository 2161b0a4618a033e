"""Rows with images: read, encoded, trained on and selected from by a vision-language model."""

from __future__ import annotations

import io
import json

import datasets
import numpy as np
import pytest
import tiny_folder
import tiny_vision_folder
import torch
from PIL import Image

from oasis import cli
from oasis.lab import model as models
from oasis.lab.data.own.collate import ImageCollator
from oasis.lab.data.own.load import load
from oasis.lab.data.own.rows import read_rows
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.data.processed import image_tensors
from oasis.lab.evaluate import choice_accuracy, held_out_loss
from oasis.lab.record.log import read_events
from oasis.names import IGNORED
from oasis.train.batch.columns import COUNTS

FAST = ("rank=2", "device=cpu", "dtype=float32", "batch_size=8", "learning_rate=3e-2")


@pytest.fixture(scope="module")
def processor():
    return tiny_vision_folder.processor()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_vision_folder.save(tmp_path_factory.mktemp("model"))


@pytest.fixture
def png(tmp_path):
    Image.new("RGB", (8, 8), (200, 100, 50)).save(tmp_path / "a.png")
    return (tmp_path / "a.png").read_bytes()


def loaded(processor, path, max_length=200, **settings):
    settings = DataSettings(path=[str(path)], test_share=0, **settings)
    return load(settings, processor.tokenizer, max_length, 0, processor)


def read_one(processor, folder, values, **settings):
    """The only row of a file, encoded, as text with one mark for all tokens of an image."""
    path = tiny_folder.write_rows(folder / "rows.jsonl", [values])
    (item,) = loaded(processor, path, **settings).tasks[0].train
    text = processor.tokenizer.decode(item["input_ids"])
    learnt = [label for label in item["labels"] if label != IGNORED]
    return text.replace("<image>" * 4, "<image>"), processor.tokenizer.decode(learnt), item


LLAVA = [{"from": "human", "value": "<image>\nq"}, {"from": "gpt", "value": "r"}]
PARTS = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "r"}]},
]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"image": "a.png", "conversations": LLAVA}, "[<image>q]r</s>"),
        ({"images": ["a.png"], "messages": PARTS}, "[<image>q]r</s>"),
        ({"question_id": 3, "image": "a.png", "text": "q", "answer": "r"}, "[<image>q]r</s>"),
        ({"image": ["a.png", "a.png"], "prompt": "q", "completion": "r"}, "[<image><image>q]r</s>"),
        ({"image": "a.png", "prompt": "q <image>?", "completion": "r"}, "[q <image>?]r</s>"),
        ({"image": "a.png", "text": "r"}, "[<image>]r</s>"),
        ({"image": None, "prompt": "q", "completion": "r"}, "[q]r</s>"),
    ],
)
def test_all_layouts_take_images(processor, tmp_path, png, values, text):
    found, learnt, item = read_one(processor, tmp_path, values)
    assert found == text and learnt == "r</s>"
    assert len(item["images"] or ()) == text.count("<image>")


def test_images_are_paths_bytes_or_what_datasets_has(processor, tmp_path, png):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "b.png").write_bytes(png)
    asked = {"prompt": ["q"], "completion": ["r"]}
    features = {"prompt": datasets.Value("string"), "completion": datasets.Value("string")}
    one, many = datasets.Image(), datasets.List(datasets.Image())
    sources = {
        "one": ({"image": [{"bytes": png, "path": None}]}, {"image": one}),
        "many": ({"images": [[{"bytes": png, "path": "x.png"}]]}, {"images": many}),
        "binary": ({"image": [png]}, {"image": datasets.Value("binary")}),
    }
    paths = []
    for name, (image, feature) in sources.items():
        rows = datasets.Dataset.from_dict(
            asked | image, features=datasets.Features(features | feature)
        )
        rows.to_parquet(str(tmp_path / f"{name}.parquet"))
        rows.save_to_disk(str(tmp_path / name))
        paths += [tmp_path / f"{name}.parquet", tmp_path / name]
    tiny_folder.write_rows(
        tmp_path / "moved.jsonl", [{"image": "b.png", "prompt": "q", "completion": "r"}]
    )
    # What `oasis select` writes of such a row is read again.
    lines = "".join(row.line + "\n" for path in paths for row in read_rows(str(path)))
    (tmp_path / "again.jsonl").write_text(lines)
    pixels = []
    collate = ImageCollator(processor, 0)
    for path in (*paths, tmp_path / "moved.jsonl", tmp_path / "again.jsonl"):
        places = {"image_folder": str(tmp_path / "there")} if path.stem == "moved" else {}
        items = loaded(processor, path, **places).tasks[0].train
        pixels.extend(collate([item])["pixel_values"] for item in items)
    assert len(pixels) == 13 and all(each.equal(pixels[0]) for each in pixels)
    expected = processor.image_processor([Image.open(io.BytesIO(png))], return_tensors="pt")
    assert pixels[0].equal(expected["pixel_values"])


def cut(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image": "a.png"}, "rows.jsonl:2: got 1 images for 2 marks"),
        ({}, "rows.jsonl:2: got 0 images for 2 marks"),
        ({"image": ["a.png"] * 3}, "rows.jsonl:2: got 3 images for 2 marks"),
        ({"image": "b.png", "images": ["a.png"]}, "rows.jsonl:2: got both image and images"),
        ({"image": ["gone.png", "a.png"]}, "rows.jsonl:2: the image .*gone.png cannot be read"),
        ({"image": ["cut.png", "a.png"]}, "rows.jsonl:2: the image .*cut.png cannot be read"),
        ({"image": ["rows.jsonl", "a.png"]}, r"rows.jsonl:2: the image .* \(cannot identify image"),
        ({"image": 3}, 'rows.jsonl:2: "image": got a number, expected an image'),
        ({"image": {"bytes": "x"}}, 'rows.jsonl:2: "image": got a text, expected bytes or a data'),
        ({"image": "data:image/png;base64,?"}, 'rows.jsonl:2: "image": got a text, expected bytes'),
    ],
)
def test_what_is_wrong_with_an_image_is_said_with_file_and_entry(
    processor, tmp_path, png, values, says
):
    (tmp_path / "cut.png").write_bytes(cut(png))
    sound = {"prompt": "q", "completion": "r"}
    rows = [sound, {**sound, **values, "prompt": "<image> <image>"}]
    path = tiny_folder.write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises((ValueError, FileNotFoundError), match=says):
        loaded(processor, path)


def test_images_are_seen_as_viewers_show_them(processor, tmp_path):
    """16 bits, rotated by EXIF: the processor gets the 8-bit and upright ones."""
    grey = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    upright = np.zeros((8, 8, 3), np.uint8)
    upright[:4, 4:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees clockwise
    Image.fromarray(np.rot90(upright)).save(tmp_path / "turned.png", exif=exif)
    for name, seen in (("grey", np.stack([grey // 257] * 3, -1)), ("turned", upright)):
        values = {"image": f"{name}.png", "prompt": "q", "completion": "r"}
        *_, item = read_one(processor, tmp_path, values)
        got = ImageCollator(processor, 0)([item])["pixel_values"]
        image = Image.fromarray(seen.astype(np.uint8))
        expected = processor.image_processor([image], return_tensors="pt")["pixel_values"]
        assert (got - expected).abs().max() < 0.02, name


def test_the_field_of_images_can_be_named(processor, tmp_path, png):
    values = {"shown": "a.png", "image": "gone.png", "prompt": "q", "completion": "r"}
    assert read_one(processor, tmp_path, values, image="shown")[0] == "[<image>q]r</s>"
    with pytest.raises(ValueError, match='rows.jsonl:1: no field "pixels"'):
        read_one(processor, tmp_path, values, image="pixels")


def test_what_is_too_long_with_an_image_is_left_out_and_said(processor, tmp_path, png):
    rows = [{"image": "a.png", "prompt": "q" * n, "completion": "r"} for n in (1, 50)]
    rows.append({"prompt": "q" * 50, "completion": "r"})
    found = loaded(processor, tiny_folder.write_rows(tmp_path / "r.jsonl", rows), max_length=20)
    assert "r: 1 left out, for they have images and more than 20 tokens" in found.said
    assert "r: 1 cut to 20 tokens" in found.said and len(found.tasks[0].train) == 2


def test_images_changed_since_are_other_data_and_questions_with_others_are_others(
    processor, tmp_path
):
    rows = tiny_vision_folder.shades(tmp_path, 20)
    path = tiny_folder.write_rows(tmp_path / "rows.jsonl", rows)
    settings = DataSettings(path=[path], test_share=0.2)
    before = load(settings, processor.tokenizer, 100, 0, processor)
    assert len(before.tasks[0].test) == 4  # all ask the same, of other images
    item = before.tasks[0].train[0]
    name = item["images"][0]["path"]
    Image.new("RGB", (8, 8), "red").save(name)
    assert load(settings, processor.tokenizer, 100, 0, processor).digest != before.digest


def test_a_batch_is_what_the_processor_makes_of_its_samples(processor, tmp_path, png):
    rows = [{"image": ["a.png"] * n, "prompt": "q" * (n + 1), "completion": "r"} for n in (0, 2, 1)]
    items = loaded(processor, tiny_folder.write_rows(tmp_path / "r.jsonl", rows)).tasks[0].train
    batch = ImageCollator(processor, 0)(list(items))
    assert batch[COUNTS].tolist() == [0, 2, 1] and batch["pixel_values"].shape[0] == 3
    for row, n in enumerate((0, 2, 1)):
        text = "[" + "<image>" * n + "q" * (n + 1) + "]r</s>"
        images = [Image.open(tmp_path / "a.png")] * n or None
        alone = processor(text=text, images=images, return_tensors="pt")["input_ids"][0]
        assert batch["input_ids"][row][: len(alone)].equal(alone)
        assert batch["attention_mask"][row].sum() == len(alone)


def test_tensors_with_a_row_for_each_sample_are_filled_with_images_of_zeros():
    """[1, images, ...] of Idefics 3; LLaVA-NeXT's [images, tiles, ...] lie one behind another."""
    two, one = torch.rand(1, 2, 3, 4, 4), torch.rand(1, 1, 3, 4, 4)
    rows = [
        {"pixel_values": two, "pixel_attention_mask": torch.ones(1, 2, 4, 4)},
        {},
        {"pixel_values": one, "pixel_attention_mask": torch.ones(1, 1, 4, 4)},
    ]
    batch = image_tensors(rows)
    assert batch["pixel_values"].shape == (3, 2, 3, 4, 4) and COUNTS not in batch
    assert batch["pixel_values"][0].equal(two[0]) and batch["pixel_values"][2, :1].equal(one[0])
    assert not batch["pixel_values"][1].any() and not batch["pixel_values"][2, 1].any()
    assert batch["pixel_attention_mask"].sum((2, 3)).tolist() == [[16, 16], [0, 0], [16, 0]]
    sizes = {"image_sizes": torch.tensor([[4, 8]])}
    batch = image_tensors([{"pixel_values": two, **sizes}, {}, {"pixel_values": two, **sizes}])
    assert batch["pixel_values"].shape == (2, 2, 3, 4, 4) and batch[COUNTS].tolist() == [1, 0, 1]


def test_evaluation_sees_the_images(processor, folder, tmp_path):
    """Loss and choices of a batch are those of each sample alone, by transformers itself."""
    path = tiny_folder.write_rows(tmp_path / "r.jsonl", tiny_vision_folder.shades(tmp_path, 40))
    task = loaded(processor, path).tasks[0]
    model = models.load_model(folder, torch.device("cpu"), torch.float32)
    items = list(task.train)[:6]
    collate = ImageCollator(processor, 0)
    losses, hits, apart = [], [], set()
    for item in items:
        image = Image.open(item["images"][0]["path"])
        score = {}
        for choice in ("dark", "light"):
            text = f"[<image>shade?]{choice}</s>"
            made = processor(text=text, images=[image], return_tensors="pt")
            labels = made["input_ids"].clone()
            labels[:, : -len(choice) - 1] = -100
            loss = model(**made, labels=labels).loss * (len(choice) + 1)
            start = made["input_ids"].shape[1] - len(choice) - 2
            logits = model(**made).logits[0, start]
            score[choice] = float(logits[made["input_ids"][0, start + 1]])
            if choice == item["answer"]:
                losses.append((float(loss), len(choice) + 1))
        apart.add(round(score["dark"] - score["light"], 4))
        hits.append(max(score, key=score.get) == item["answer"])
    assert len(apart) == 6  # images matter
    expected = sum(loss for loss, _ in losses) / sum(count for _, count in losses)
    got = held_out_loss(model, processor.tokenizer, items, 4, collate)
    assert got == pytest.approx(expected, rel=1e-4)
    judged = type(task)(task.name, items, items, task.choices, task.choice_ids)
    accuracy = choice_accuracy(model, processor.tokenizer, judged, 4, collate=collate)
    assert accuracy == sum(hits) / 6


def test_lora_is_on_the_language_model_alone(folder):
    model = models.load_model(folder, torch.device("cpu"), torch.float32)
    for layers in (None, 1):
        lora = models.attach_lora(model, rank=2, alpha=None, layers=layers, seed=0)
        trained = [name for name, p in lora.named_parameters() if p.requires_grad]
        assert len(trained) == 14 and all("language_model.layers.0" in name for name in trained)
        lora.unload()


def test_a_vision_language_model_is_trained_by_one_command(folder, tmp_path, capsys):
    rows = tiny_vision_folder.shades(tmp_path, 60)
    plain = [{"conversations": [{"from": "human", "value": f"{i}?"}, LLAVA[1]]} for i in range(12)]
    (tmp_path / "shades.json").write_text(json.dumps(rows))
    text = tiny_folder.write_rows(tmp_path / "text.jsonl", plain)
    data = ("--data", str(tmp_path / "shades.json"), "--data", text)
    command = ["train", f"out={tmp_path}", "--model", folder, *FAST, *data]
    assert cli.main([*command, "--dry-run"]) == 0
    assert "shades: until step 7, judged by its answers on 6" in capsys.readouterr().out
    assert cli.main([*command, "forward_batches=1", "policy=full"]) == 0
    events = read_events(tmp_path / "run" / "events.jsonl")
    evaluations = [event for event in events if event["type"] == "evaluation"]
    assert evaluations[-1]["accuracy"]["shades"] > evaluations[0]["accuracy"]["shades"]
    assert evaluations[-1]["loss"]["text"] < evaluations[0]["loss"]["text"]
    keys = {key for e in events if e["type"] == "selection" for key in e["key"]}
    assert f"{tmp_path / 'shades.json'}[0]" in keys and len(keys) == 54 + 11
    config = json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text())
    assert all("language_model" in name for name in config["target_modules"])


def test_rows_of_several_images_are_trained_on_whole(folder, tmp_path):
    """Accelerate would cut the images of a stream's batch to as many as it has samples."""
    rows = tiny_vision_folder.shades(tmp_path, 40)
    for row, other in zip(rows, tiny_vision_folder.shades(tmp_path, 40)[::-1], strict=True):
        row["image"] = [row["image"], other["image"]]
        row["conversations"][0]["value"] = "<image><image>\nfirst?"
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    data = ("--data", str(tmp_path / "pairs.json"))
    assert cli.main(["train", f"out={tmp_path}", "--model", folder, *FAST, *data]) == 0
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert sum(event["type"] == "selection" for event in events) > 1 and events[-1]["type"] == "end"


def test_rows_with_images_are_selected(folder, tmp_path, capsys):
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_vision_folder.shades(tmp_path, 32))
    out = tmp_path / "kept.jsonl"
    command = ["select", "--model", folder, "--data", rows, "--out", str(out), "-q"]
    assert cli.main([*command, "--dtype", "float32", "--device", "cpu"]) == 0
    kept = out.read_text().splitlines()
    assert len(kept) == 8 and set(kept) <= set((tmp_path / "rows.jsonl").read_text().splitlines())
    lines = (tmp_path / "kept.record.jsonl").read_text().splitlines()
    scores = [found["score"] for line in lines if (found := json.loads(line))["type"] == "row"]
    assert len(set(scores)) > 16  # equal texts, other images


def test_rows_too_long_for_their_images_are_no_candidates(folder, tmp_path, capsys):
    rows = tiny_vision_folder.shades(tmp_path, 16)
    for row in rows[:3]:
        row["conversations"][0]["value"] += " shade?" * 40
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", rows)
    command = ["select", "--model", folder, "--data", rows, "--out", str(tmp_path / "kept.jsonl")]
    command += ["--dtype", "float32", "--device", "cpu", "--max-length", "40", "--ratio", "0.5"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "3 of 16 rows left out: too long for their images" in said and "of 13 (" in said


def test_a_text_with_a_mark_of_its_own_is_named(processor, tmp_path, png):
    row = {"image": "a.png", "text": "<image> A red cube."}
    path = tiny_folder.write_rows(tmp_path / "rows.jsonl", [row])
    with pytest.raises(ValueError, match="rows.jsonl:1: got 1 images for 2 marks"):
        loaded(processor, path)


def test_a_language_model_refuses_images(tmp_path, capsys):
    model = tiny_folder.save(tmp_path / "model")
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_vision_folder.shades(tmp_path, 2))
    assert cli.main(["train", f"out={tmp_path}", "--model", model, "--data", rows]) == 2
    assert "rows.jsonl:1: has an image, and the model takes text alone" in capsys.readouterr().err


def test_a_library_that_a_processor_needs_is_named_in_one_line(
    folder, tmp_path, monkeypatch, capsys
):
    """As transformers says it of Qwen-VL's processor where torchvision is missing."""

    def placeholder(*_, **__):
        raise ImportError(
            "\nQwen2VLVideoProcessor requires the Torchvision library but it was not found in your "
            "environment. Check out the instructions ...\n"
        )

    path = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(8))
    monkeypatch.setattr(models.AutoProcessor, "from_pretrained", placeholder)
    assert cli.main(["train", "--data", path, "--model", folder, "-q"]) == 2
    said = capsys.readouterr().err
    needed = "needs torchvision, which is not installed: pip install torchvision"
    assert said == f"error: model: {folder} {needed}\n"
