"""Text to tokens and back: characters, words, or GPT-2's byte pairs."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, extra
from reservoir_hw.core.files import replace_file

FORMAT = "reservoir_hw.tokenizer"
VERSION = 1

# That are encoded side by side.
_PIECES = 16
_DOCUMENTS = 4096
_WORD = re.compile(r"\w+|[^\w\s]")


class Tokenizer(ABC):
    """What numbers a text's pieces; `load_tokenizer` reads what `save` writes."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many different tokens there are."""

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Tokens (time,): uint16 where the vocabulary allows it, else int32.

        Raises `InputRangeError` for what has no token.
        """

    def encode_pieces(self, pieces: Iterable[str]) -> np.ndarray:
        """Tokens (time,) of a text that comes in pieces. As `encode`."""
        return np.concatenate([self.encode(piece) for piece in pieces])

    def decode(self, tokens: Any) -> str:
        """The text of tokens (time,). Raises `InputRangeError` for one outside the vocabulary."""
        numbers = np.asarray(tokens, dtype=np.int64).reshape(-1)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= self.vocabulary))
        if len(wrong):
            raise InputRangeError(
                f"token {numbers[wrong[0]]} at position {wrong[0]} is outside the vocabulary of {self.vocabulary}"
            )
        return self._text(numbers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that `load_tokenizer` needs, as JSON."""
        replace_file(path, self.dump())

    def dump(self) -> str:
        """What `save` writes."""
        content = {"format": FORMAT, "version": VERSION, "kind": self.kind, **self._content()}
        return json.dumps(content, ensure_ascii=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest dtype that tokens are given in."""
        return np.dtype(np.uint16 if self.vocabulary <= 1 << 16 else np.int32)

    @abstractmethod
    def _text(self, tokens: np.ndarray) -> str: ...

    @abstractmethod
    def _content(self) -> dict[str, Any]: ...

    @classmethod
    def _from(cls, content: dict[str, Any]) -> Self:
        return cls(**content)


class CharTokenizer(Tokenizer):
    """One token for each character, in the order of their code points.

    `lowercase` turns a text to lower case first, as Köster & Uchida 2026 do (section II.F). `unknown` is the character
    whose token every other one gets; without one a character that is not known is an error.
    """

    kind = "char"

    def __init__(self, characters: Sequence[str], *, lowercase: bool = False, unknown: str | None = None) -> None:
        self.characters: list[str] = sorted(set(characters) | ({unknown} if unknown else set()))
        if not self.characters or any(len(character) != 1 for character in self.characters):
            raise ConfigurationError("a vocabulary of characters needs at least one, and single characters only")
        self.lowercase = bool(lowercase)
        self.unknown = unknown
        self._codes = np.array([ord(character) for character in self.characters], dtype=np.uint32)

    @classmethod
    def from_text(cls, text: str, *, lowercase: bool = False, unknown: str | None = None) -> Self:
        """The characters that occur in a text."""
        return cls(sorted(set(text.lower() if lowercase else text)), lowercase=lowercase, unknown=unknown)

    @property
    def vocabulary(self) -> int:
        """How many different characters there are."""
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """See `Tokenizer`."""
        text = text.lower() if self.lowercase else text
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        tokens = np.minimum(np.searchsorted(self._codes, codes), self.vocabulary - 1)
        wrong = np.flatnonzero(self._codes[tokens] != codes)
        if len(wrong) and self.unknown is not None:
            tokens[wrong] = self.characters.index(self.unknown)
        elif len(wrong):
            raise InputRangeError(
                f"the character {text[wrong[0]]!r} at position {wrong[0]} is not among the {self.vocabulary} of the "
                "vocabulary: build it from all texts that are used, or give it an `unknown` character"
            )
        return tokens.astype(self.dtype)

    def _text(self, tokens: np.ndarray) -> str:
        return self._codes[tokens].astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")

    def _content(self) -> dict[str, Any]:
        return {"characters": "".join(self.characters), "lowercase": self.lowercase, "unknown": self.unknown}


class WordTokenizer(Tokenizer):
    """One token for each word and each punctuation mark; `decode` puts blanks between all of them.

    `lowercase` turns a text to lower case first. `unknown` is the token of every other word; without one a word that
    is not known is an error.
    """

    kind = "word"

    def __init__(self, words: Sequence[str], *, lowercase: bool = False, unknown: str | None = None) -> None:
        self.words = list(dict.fromkeys([*([] if unknown is None else [unknown]), *words]))
        if not self.words:
            raise ConfigurationError("a vocabulary of words needs at least one")
        self.lowercase = bool(lowercase)
        self.unknown = unknown
        self._numbers = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def from_text(
        cls, text: str, *, most: int | None = None, lowercase: bool = False, unknown: str | None = None
    ) -> Self:
        """The words of a text by their frequency, the `most` frequent of them."""
        found = Counter(_WORD.findall(text.lower() if lowercase else text)).most_common(most)
        return cls([word for word, _ in found], lowercase=lowercase, unknown=unknown)

    @property
    def vocabulary(self) -> int:
        """How many different words there are."""
        return len(self.words)

    def encode(self, text: str) -> np.ndarray:
        """See `Tokenizer`."""
        found = _WORD.findall(text.lower() if self.lowercase else text)
        missing = -1 if self.unknown is None else self._numbers[self.unknown]
        tokens = np.array([self._numbers.get(word, missing) for word in found], dtype=np.int64)
        wrong = np.flatnonzero(tokens < 0)
        if len(wrong):
            raise InputRangeError(
                f"the word {found[wrong[0]]!r} (number {wrong[0]} of the text) is not among the {self.vocabulary} of "
                "the vocabulary: build it from all texts that are used, or give it an `unknown` token"
            )
        return tokens.astype(self.dtype)

    def _text(self, tokens: np.ndarray) -> str:
        return " ".join(self.words[token] for token in tokens)

    def _content(self) -> dict[str, Any]:
        return {"words": self.words, "lowercase": self.lowercase, "unknown": self.unknown}


class BpeTokenizer(Tokenizer):
    """Byte-level byte pairs (Radford et al. 2019), of which every text has tokens: GPT-2's 50257, or trained ones.

    Needs the package tokenizers (the `train` extra).
    """

    kind = "bpe"

    END = "<|endoftext|>"
    """Stands between documents; a single token where a text holds it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def gpt2(cls, folder: str | os.PathLike[str] | None = None) -> Self:
        """From `encoder.json` and `vocab.bpe` in a folder, by default `$RESERVOIR_HW_DATA/gpt2`."""
        if folder is None:
            data = os.environ.get("RESERVOIR_HW_DATA")
            if data is None:
                raise ConfigurationError(
                    "GPT-2's tokens need its files encoder.json and vocab.bpe: name their folder, or set "
                    "RESERVOIR_HW_DATA to a folder that has them in gpt2"
                )
            folder = Path(data) / "gpt2"
        library = _tokenizers()
        try:
            numbers = json.loads((Path(folder) / "encoder.json").read_text(encoding="utf-8"))
            lines = (Path(folder) / "vocab.bpe").read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{folder}: GPT-2's encoder.json and vocab.bpe cannot be read: {error}") from error
        merges = [tuple(line.split()) for line in lines[1:] if line]
        return cls(cls._with_bytes(library, library.models.BPE(vocab=numbers, merges=merges)))

    @classmethod
    def trained(cls, pieces: Iterable[str], vocabulary: int) -> Self:
        """The `vocabulary` most useful tokens for a text that comes in pieces; fewer where it has not so many pairs.

        The 256 bytes and `END` are among them.
        """
        library = _tokenizers()
        made = cls._with_bytes(library, library.models.BPE())
        alphabet = library.pre_tokenizers.ByteLevel.alphabet()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=[cls.END], initial_alphabet=alphabet, show_progress=False
        )
        made.train_from_iterator(pieces, trainer)
        return cls(made)

    @classmethod
    def _with_bytes(cls, library: Any, model: Any) -> Any:
        made = library.Tokenizer(model)
        made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = library.decoders.ByteLevel()
        made.add_special_tokens([cls.END])
        return made

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """See `Tokenizer`; nothing is without a token."""
        return np.array(self._tokenizer.encode(text).ids, dtype=self.dtype)

    def encode_pieces(self, pieces: Iterable[str]) -> np.ndarray:
        """See `Tokenizer`; several pieces at a time, on all cores."""
        found, left = [], iter(pieces)
        while some := list(islice(left, _PIECES)):
            found += [np.array(one.ids, dtype=self.dtype) for one in self._tokenizer.encode_batch_fast(some)]
        return np.concatenate(found)

    def encode_documents(self, documents: Iterable[str]) -> np.ndarray:
        """Tokens (time,) of documents one after the other, with `END` before and behind each.

        Where a document itself holds `END`, it is left out.
        """
        end = self._tokenizer.token_to_id(self.END)
        found = [np.empty(0, self.dtype)]
        waiting = iter(documents)
        while texts := list(islice(waiting, _DOCUMENTS)):
            some = self._tokenizer.encode_batch_fast(texts)
            numbers = (number for one in some for number in (end, *(i for i in one.ids if i != end), end))
            found.append(np.fromiter(numbers, self.dtype))
        return np.concatenate(found)

    def _text(self, tokens: np.ndarray) -> str:
        return self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False)

    def _content(self) -> dict[str, Any]:
        return {"tokenizer": json.loads(self._tokenizer.to_str())}

    @classmethod
    def _from(cls, content: dict[str, Any]) -> Self:
        return cls(_tokenizers().Tokenizer.from_str(json.dumps(content["tokenizer"])))


_KINDS: dict[str, type[Tokenizer]] = {t.kind: t for t in (CharTokenizer, WordTokenizer, BpeTokenizer)}


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """What `Tokenizer.save` wrote. Raises `ConfigurationError` for any other file."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name} cannot be read as a tokenizer: {error}") from error
    return parse_tokenizer(text, name)


def parse_tokenizer(text: str | bytes, name: str) -> Tokenizer:
    """What `Tokenizer.save` wrote, as it was read from the file `name`."""
    try:
        content = json.loads(text)
        form, version, kind = (content.pop(key) for key in ("format", "version", "kind"))
        if form != FORMAT or version != VERSION:
            raise ValueError(f"format {form!r} version {version}")
        return _KINDS[kind]._from(content)
    except RecursionError as error:
        raise ConfigurationError(f"{name} cannot be read as a tokenizer: it is nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{name} cannot be read as a tokenizer: {error}") from error


def _tokenizers() -> Any:
    with extra("train", "byte pairs need tokenizers"):
        import tokenizers
    return tokenizers


# ---- Documents of unequal length as tokens, in one array.


class Documents:
    """Sequences of tokens of unequal length: document i is `tokens[starts[i]:stops[i]]`.

    `tokens` (total,) may be mapped into memory; `starts` and `stops` are (documents,) int64.
    """

    def __init__(self, tokens: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
        self.tokens, self.starts, self.stops = tokens, starts, stops

    @classmethod
    def of(cls, documents: Sequence[Any]) -> Self:
        """From one sequence of tokens for each document."""
        arrays = [np.asarray(document) for document in documents]
        stops = np.cumsum([len(array) for array in arrays], dtype=np.int64)
        return cls(np.concatenate(arrays), stops - [len(array) for array in arrays], stops)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> np.ndarray:
        """The tokens (time,) of a document."""
        return self.tokens[self.starts[number] : self.stops[number]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document (documents,)."""
        return self.stops - self.starts

    def chosen(self, which: np.ndarray | slice) -> Self:
        """Those that an index of numpy chooses."""
        return type(self)(self.tokens, self.starts[which], self.stops[which])

    def places(self, size: int) -> np.ndarray:
        """Where in `tokens` each run of `size` tokens within a document begins, document by document (runs,)."""
        counts = np.maximum(self.lengths - size + 1, 0)
        first = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(self.starts - first, counts)


Corpus: TypeAlias = np.ndarray | Documents
"""One text (time,), or documents."""


def joined(corpus: Corpus) -> np.ndarray:
    """All tokens, one document after the other (time,)."""
    return corpus.tokens[corpus.places(1)] if isinstance(corpus, Documents) else corpus
