"""The demo's tokenizer: bytes, the tags whole, digits single, and merges learnt from the corpus."""

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END = "<end>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>", r"\boxed{", "}")
VOCABULARY_SIZE = 320


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most 320 tokens; any text at all comes back as it went in.

    `<end>` ends a solution and pads; it is the only special token. Tags are ordinary text that
    is one token each, and stay when special tokens are left out of a decoded text.
    """
    tokenizer = Tokenizer(models.BPE())
    # A prompt's last character ends a token, so that prompt and solution have the same ids
    # apart and together.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("?", "merged_with_previous"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END],
        show_progress=False,
    )
    # Tags are cut out first: merges inside them would never be used.
    tag = re.compile("|".join(map(re.escape, TAGS)))
    tokenizer.train_from_iterator((piece for text in texts for piece in tag.split(text)), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
