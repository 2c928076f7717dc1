"""Features of a fine-tuning task: token sequences, laid out flat, and their labels."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# The label of what takes no part in the loss.
NO_LABEL = -1


class Features(NamedTuple):
    """The sequences of consecutive examples, one after the other.

    Attributes:
      input_ids: int32 [tokens], with [CLS] and [SEP], without padding.
      segment_ids: int8 [tokens].
      lengths: int32 [sequences], tokens of each.
      examples: int32 [sequences], number of the example that each sequence belongs to, ascending from 0. An example may
        have several: its choices, or the windows of a long text.
      labels: None where unknown, else an array whose first axis is that of the sequences, except for tags [tokens] and
        for choices [examples]: the number of a label or of the right choice (int32), numbers of a regression or a share
        for each label (float32), first and last token of an answer (int32 [sequences, 2]). NO_LABEL is left out.
      token_info: more that decoding needs: name -> array [tokens, ...].
      num_cut: sequences that lost tokens to the length limit.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray
    examples: np.ndarray
    labels: np.ndarray | None
    token_info: dict[str, np.ndarray]
    num_cut: int


def make_features(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    examples: Sequence[int],
    labels: np.ndarray | None = None,
    token_info: dict[str, np.ndarray] | None = None,
    num_cut: int = 0,
) -> Features:
    """Puts sequences (input_ids, segment_ids) together."""
    ids = [np.asarray(ids, np.int32) for ids, _ in sequences]
    segments = [np.asarray(segments, np.int8) for _, segments in sequences]
    return Features(
        np.concatenate(ids) if ids else np.zeros(0, np.int32),
        np.concatenate(segments) if segments else np.zeros(0, np.int8),
        np.array([len(row) for row in ids], np.int32),
        np.asarray(examples, np.int32),
        labels,
        token_info or {},
        num_cut,
    )


def concatenate(parts: Sequence[Features], example_counts: Sequence[int]) -> Features:
    """Joins the features of consecutive examples; each part numbers its examples from 0."""
    if len(parts) == 1:
        return parts[0]
    first = np.cumsum([0, *example_counts[:-1]])
    return Features(
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate([part.segment_ids for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.examples + start for part, start in zip(parts, first)]).astype(np.int32),
        None if any(part.labels is None for part in parts) else np.concatenate([part.labels for part in parts]),
        {name: np.concatenate([part.token_info[name] for part in parts]) for name in parts[0].token_info},
        sum(part.num_cut for part in parts),
    )
