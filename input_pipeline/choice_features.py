"""A context and its possible endings -> a sequence for each: [CLS] context [SEP] stem ending [SEP] (section 4.4)."""

from collections.abc import Sequence

import numpy as np

from input_pipeline.sequence_layout import PAIR_SPECIAL, Layout, lay_out
from input_pipeline.task_examples import ChoiceExample
from input_pipeline.task_features import Features, make_features
from input_pipeline.tokenization import Tokenizer


def choice_features(examples: Sequence[ChoiceExample], *, tokenizer: Tokenizer, max_length: int) -> Features:
    """The sequences of all endings, those of an example one after the other.

    What is too long loses tokens of the context first, from its end; then of the stem, from its beginning; then of the
    ending, from its end: the endings are what is compared.

    Returns:
      Features; labels int32 [examples], the number of the right ending, or None unless all examples have one.

    Raises:
      UserError: `max_length` leaves no room for the special tokens.
    """
    contexts = tokenizer.encode_batch(example.text for example in examples)
    stems = tokenizer.encode_batch(example.stem for example in examples)
    endings = iter(tokenizer.encode_batch(ending for example in examples for ending in example.endings))
    layouts = [
        _lay_out(tokenizer, context, stem, next(endings), max_length)
        for example, context, stem in zip(examples, contexts, stems)
        for _ in example.endings
    ]
    labels = [example.label for example in examples]
    return make_features(
        [(layout.input_ids, layout.segment_ids) for layout in layouts],
        np.repeat(np.arange(len(examples)), [len(example.endings) for example in examples]),
        None if None in labels else np.array(labels, np.int32),
        num_cut=sum(layout.was_cut for layout in layouts),
    )


def _lay_out(
    tokenizer: Tokenizer, context: Sequence[int], stem: Sequence[int], ending: Sequence[int], max_length: int
) -> Layout:
    room = max(max_length - PAIR_SPECIAL, 0)
    kept_stem = stem[max(len(stem) + len(ending) - room, 0) :]
    second = [*kept_stem, *ending][:room]
    # Without a second text there is room for one token more.
    first = context[: room - len(second)] if second else context
    layout = lay_out(tokenizer, first, second, max_length)
    was_cut = len(first) + len(second) < len(context) + len(stem) + len(ending)
    return layout._replace(was_cut=layout.was_cut or was_cut)
