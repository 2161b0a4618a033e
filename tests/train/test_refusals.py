"""What selection cannot go with is refused by name, before anything is trained."""

import pytest
import torch
import trl
from tiny_models import VOCAB, tiny_llama, tiny_model
from tiny_training import Pad, Rows, arguments, selection_trainer
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    LlamaConfig,
    PreTrainedModel,
    Trainer,
)
from transformers.modeling_outputs import CausalLMOutput

from oasis.train import SelectionMixin, SelectionTrainer

BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
SMALL = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 32},
    **{"num_hidden_layers": 1, "num_attention_heads": 2},
}


@pytest.mark.shows(
    "Trainers", "TRL's DPO, KTO, GRPO, RLOO, reward, distillation", "refused: rows are no samples"
)
@pytest.mark.parametrize(
    "name",
    [
        "DPOTrainer",
        "KTOTrainer",
        "GRPOTrainer",
        "RLOOTrainer",
        "RewardTrainer",
        "DistillationTrainer",
    ],
)
def test_trainers_whose_rows_are_no_samples(name):
    mixed = type("Mixed", (SelectionMixin, getattr(trl, name)), {})
    with pytest.raises(TypeError, match=f"Mixed: got {name}.*SFTTrainer"):
        mixed(model=None)


@pytest.mark.shows(
    "Trainers", "the mixin behind the trainer in the bases", "refused at the class statement"
)
def test_the_mixin_behind_the_trainer():
    with pytest.raises(TypeError, match=r"expected class Wrong\(SelectionMixin, SFTTrainer\)"):
        type("Wrong", (trl.SFTTrainer, SelectionMixin), {})
    hiding = type("Hiding", (Trainer,), {})
    with pytest.raises(TypeError, match="got Hiding before SelectionMixin"):
        type("Wrong", (hiding, SelectionTrainer), {})
    type("Right", (type("Apart", (), {}), SelectionTrainer), {})


@pytest.mark.shows("Models", "masked language models, classification heads", "refused")
@pytest.mark.parametrize("policy", ["oasis", "random"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: AutoModelForMaskedLM.from_config(BertConfig(**BERT)),
        lambda: AutoModelForSequenceClassification.from_config(LlamaConfig(**SMALL)),
    ],
)
def test_heads_that_do_not_predict_the_next_token(tmp_path, make, policy):
    model = make()
    with pytest.raises(ValueError, match=f"got {type(model).__name__}, whose head"):
        selection_trainer(tmp_path, model, policy)


@pytest.mark.shows(
    "Models", "a language model that is not causal (`is_decoder=False`)", "refused, first batch"
)
@pytest.mark.parametrize("policy", ["oasis", "random"])
def test_a_decoder_that_looks_ahead(tmp_path, policy):
    model = tiny_model("bert", is_decoder=False)
    with pytest.raises(ValueError, match="BertLMHeadModel, whose logits depend on the tokens"):
        selection_trainer(tmp_path, model, policy).train()
    selection_trainer(tmp_path, tiny_model("bert", is_decoder=True), policy, max_steps=1).train()


def test_states_that_round_differently_do_not_look_ahead(tmp_path):
    """Half types on real kernels: a row's states depend on how many are computed with it, which a
    cache of frozen blocks makes another number each time."""
    model = tiny_model(dtype=torch.bfloat16)
    forwards = iter(range(1000))

    def rounded(block, args, output):
        return output * (1 + next(forwards) % 2 / 64)

    model.model.layers[0].register_forward_hook(rounded)
    selection_trainer(tmp_path, model, "oasis", max_steps=1).train()


class Headless(PreTrainedModel):
    """A language model that names no output head."""

    config_class = LlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.inner = tiny_llama()

    def get_output_embeddings(self):
        return None

    def forward(self, input_ids, attention_mask=None, labels=None):
        return CausalLMOutput(logits=self.inner(input_ids, attention_mask).logits)


@pytest.mark.shows(
    "Models", "no output head, or a quantised one", "works with policies that score nothing"
)
def test_only_a_policy_that_scores_needs_a_head(tmp_path):
    with pytest.raises(ValueError, match="got Headless.*output head.*random, full"):
        selection_trainer(tmp_path, Headless(LlamaConfig(**SMALL)), "oasis")
    plain = selection_trainer(tmp_path, tiny_llama(), "random")
    headless = selection_trainer(tmp_path, Headless(LlamaConfig(**SMALL)), "random")
    expected, got = plain.train().training_loss, headless.train().training_loss
    assert got == pytest.approx(expected, rel=1e-6)
    ours, theirs = headless.model.inner.state_dict(), plain.model.state_dict()
    assert all(torch.allclose(ours[name], value) for name, value in theirs.items())


def test_a_head_that_is_quantised_matters_only_to_scores(tmp_path):
    class Whole(nn.Linear):
        """Weights that no product of floats is made of."""

        def forward(self, hidden):
            return hidden @ self.weight.to(hidden.dtype).T

    def model():
        made = tiny_llama()
        head = Whole(32, VOCAB, bias=False)
        head.weight = nn.Parameter(torch.randint(-3, 4, (VOCAB, 32)), requires_grad=False)
        made.base_model.model.lm_head = head
        return made

    selection_trainer(tmp_path, model(), "random", max_steps=1).train()
    with pytest.raises(ValueError, match="keep the head out of quantisation"):
        selection_trainer(tmp_path, model(), "oasis", max_steps=1).train()


def test_rows_that_nothing_tells_apart(tmp_path):
    args = arguments(tmp_path)
    args.packing, args.packing_strategy = True, "wrapped"
    with pytest.raises(ValueError, match="packing_strategy: got 'wrapped'.*'bfd'"):
        SelectionTrainer(
            model=tiny_llama(), args=args, train_dataset=Rows(4), data_collator=Pad(), policy="full"
        )
