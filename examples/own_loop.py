"""A training loop of your own: `python own_loop.py MODEL ROWS.jsonl`."""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import oasis
from oasis.names import IGNORED


def encode(tokenizer, row):
    prompt = tokenizer(row["prompt"])["input_ids"]
    answer = tokenizer(" " + row["completion"], add_special_tokens=False)["input_ids"]
    return prompt + answer, [IGNORED] * len(prompt) + answer


def batches(tokenizer, rows, size=8):
    for start in range(0, len(rows), size):
        encoded = [encode(tokenizer, row) for row in rows[start : start + size]]
        length = max(len(ids) for ids, _ in encoded)
        ids = [ids + [0] * (length - len(ids)) for ids, _ in encoded]
        labels = [labels + [IGNORED] * (length - len(labels)) for _, labels in encoded]
        yield torch.tensor(ids), torch.tensor(labels)


def train(model_folder, rows_file):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    selector = oasis.Selector(ratio=0.25)
    with open(rows_file, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for ids, labels in batches(tokenizer, rows):
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[:, :-1]
        targets = labels[:, 1:]
        learnt = targets != IGNORED
        scores = oasis.head_gram(  # of the last layer's gradients, which need not exist
            hidden[learnt],
            model.lm_head.weight.detach(),
            targets[learnt],
            learnt.nonzero()[:, 0],
            num_samples=len(ids),
        )
        chosen = selector.select(gram=scores).indices
        if len(chosen):
            model(input_ids=ids[chosen], labels=labels[chosen]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return int(selector.selected), int(selector.candidates)


if __name__ == "__main__":
    print("trained on {} of {} rows".format(*train(*sys.argv[1:])))
