"""Compares tokens (*.npy) of texts (*.txt) in this folder with those of tiktoken. Needs nothing of this package."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false
import sys
from pathlib import Path

import numpy as np
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

files = Path(sys.argv[1])
ranks = data_gym_to_mergeable_bpe_ranks(str(files / "vocab.bpe"), str(files / "encoder.json"))
# The pattern of GPT-2 (Radford et al. 2019), as its authors published it.
pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
gpt2 = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
for text in Path().glob("*.txt"):
    tokens = gpt2.encode(text.read_bytes().decode(), allowed_special="all")
    assert tokens == np.load(text.with_suffix(".npy")).tolist(), text
