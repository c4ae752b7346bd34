"""Documents of unequal length."""

from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.core.tokenizer import Documents, joined


def test_documents_are_parts_of_one_array() -> None:
    documents = Documents.of([[1, 2, 3], [4], [5, 6]])
    assert [one.tolist() for one in documents] == [[1, 2, 3], [4], [5, 6]]
    assert documents.lengths.tolist() == [3, 1, 2]
    longer = documents.chosen(documents.lengths > 1)
    assert [one.tolist() for one in longer] == [[1, 2, 3], [5, 6]]
    assert longer.tokens is documents.tokens
    assert joined(longer).tolist() == [1, 2, 3, 5, 6]
    assert joined(documents.tokens) is documents.tokens


@pytest.mark.parametrize(("size", "begins"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 1, 4]), (3, [0]), (4, [])])
def test_places_lie_within_documents(size: int, begins: list[int]) -> None:
    assert Documents.of([[1, 2, 3], [4], [5, 6]]).places(size).tolist() == begins


def test_no_document_at_all() -> None:
    none = Documents.of([[1, 2]]).chosen(np.array([False]))
    assert len(none) == 0
    assert joined(none).tolist() == []
