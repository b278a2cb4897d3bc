"""Prune a vision transformer with the ``Trainer`` of transformers.

    pip install 'lilliput[transformers]' scikit-learn
    python examples/transformers_trainer.py

Checkpoints in ``digits_vit`` contain the masks: an interrupted run resumes where it left off.
"""

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification
from transformers.utils import logging

from lilliput.integrations.transformers import CompressionCallback
from lilliput.torch import AGPPruner, measure, take_receipt

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more

# -- the data: 1797 handwritten digits of 8 × 8 pixels --------------------------------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
test, training = shuffled[:450], shuffled[450:]
rows = [{"pixel_values": images[i], "labels": labels[i]} for i in training]

# -- a small vision transformer that sees four patches of 4 × 4 pixels ----------------------------

sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
config = ViTConfig(
    image_size=8, patch_size=4, num_channels=1, intermediate_size=96, num_labels=10, **sizes
)
model = ViTForImageClassification(config)


def accuracy(model):
    """Return the accuracy on the held-out digits."""
    model.eval()
    with torch.no_grad():
        return float((model(images[test]).logits.argmax(1) == labels[test]).float().mean())


def train(epochs, *callbacks, **options):
    """Train with the Trainer, as usual."""
    arguments = TrainingArguments(
        "digits_vit",
        num_train_epochs=epochs,
        per_device_train_batch_size=64,
        learning_rate=3e-3,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,  # there is no accelerator
        **options,
    )
    Trainer(model, arguments, train_dataset=rows, callbacks=list(callbacks)).train()


train(6, save_strategy="no")
before = measure(model, images[:64], evaluate=accuracy, name="trained")

# -- the same training, with a callback -----------------------------------------------------------

rules = [{"op_types": ["Linear"], "final_sparsity": 0.7, "end_epoch": 4}]
pruner = AGPPruner(model, rules)
train(6, CompressionCallback(pruner, strip=True), save_strategy="epoch", save_total_limit=1)

# -- what was gained ------------------------------------------------------------------------------

after = measure(model, images[:64], evaluate=accuracy, name="pruned")
note = "the pruned model has also been trained for more epochs"
print(take_receipt(before, after, metric_name="accuracy", notes=(note,)))
model.save_pretrained("digits_vit/pruned")  # a plain model, for from_pretrained
