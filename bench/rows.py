"""What a million rows of one's own take in memory: read from a file, kept, and drawn from.

The episodic memory keeps numbers of rows, whose tokens lie in a mapped Arrow file. Floor: a row's
numbers in the tasks' lists (16 bytes) and in the episodic memory (a pointer and an int, 36 bytes).
Pages of the file that were read count as resident too, until the system wants them back; hence
"of its own", the anonymous memory.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bench.timing import table
from oasis.lab.data.own.load import load
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.data.stream import MemoryStream

WORDS = 500
STEP = 0.01  # candidate batches per arrival: the draws are few, the memory is whole


def resident() -> tuple[float, float, float]:
    """MB that this process has in memory, those of them that are its own, and the most it had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = dict(line.split(":") for line in lines)
    return tuple(int(sizes[name].split()[0]) / 1000 for name in ("VmRSS", "RssAnon", "VmHWM"))


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each of `WORDS` numbers."""
    names = ["<pad>", "</s>", *map(str, range(WORDS))]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>")


def write(path: Path, rows: int) -> None:
    """Rows that ask for 40 words and are answered by 20, all different."""
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            words = [str((row * step + step) % WORDS) for step in range(1, 60)]
            asked, answer = " ".join([str(row), *words[:39]]), " ".join(words[39:])
            file.write(json.dumps({"prompt": asked, "completion": answer}) + "\n")


def run(rows: int = 1_000_000) -> None:
    found = []

    def note(what: str) -> None:
        nonlocal start
        seconds = time.perf_counter() - start
        found.append([what, *(f"{size:.0f}" for size in resident()), f"{seconds:.0f}"])
        start = time.perf_counter()

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        write(path, rows)
        words = tokenizer()
        note("imported, file written")
        loaded = load(DataSettings(path=[str(path)]), words, 128)
        note("read, encoded, kept")
        stream = MemoryStream([loaded.tasks[0].train], iterations_per_sample=STEP)
        drawn = sum(len(batch) for batch in stream.batches())
        note(f"all arrived, {drawn:,} drawn")
    header = ["after", "MB resident", "of its own", "at most", "s"]
    size = loaded.store.path.stat().st_size / 1e6
    table(f"{rows:,} rows of 60 tokens ({size:.0f} MB on disk)", header, found)
