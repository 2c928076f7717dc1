"""From what the user names to token stores: opened, found in a cache or prepared; the vocabulary given or trained."""

import dataclasses
import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from input_pipeline import corpus, prepare
from input_pipeline.corpus import Source
from input_pipeline.errors import UserError
from input_pipeline.token_store import FORMAT_VERSION, DamagedStoreError, TokenStore, is_token_store
from input_pipeline.tokenization import load_tokenizer
from input_pipeline.vocabulary import SENTENCEPIECE_FILE, WORDPIECE_FILE, train_vocabulary


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """How text is read; the flags of the same names, see `prepare.prepare`."""

    sentence_splitting: str = "auto"
    text_field: str = "text"
    num_workers: int | None = None


@dataclasses.dataclass(frozen=True)
class VocabularyOptions:
    """The vocabulary: `vocab_file`, or one of `vocab_size` pieces that is trained on the text.

    Attributes:
      vocab_file: file or folder, see `tokenization.load_tokenizer`.
      do_lower_case: None for what the vocabulary says, else True.
      vocab_size: of the vocabulary to train.
      vocab_kind: "wordpiece" or "sentencepiece", to train.
    """

    vocab_file: str | None = None
    do_lower_case: bool | None = None
    vocab_size: int | None = None
    vocab_kind: str = "wordpiece"

    def training_settings(self) -> dict[str, Any]:
        """What a trained vocabulary depends on besides the text, for a store's metadata; empty for one of a file."""
        if self.vocab_file:
            return {}
        lower = self.do_lower_case is not False
        return {"vocab_size": self.vocab_size, "vocab_kind": self.vocab_kind, "do_lower_case": lower}

    def load_or_train(
        self, sources: list[Source], text_field: str, folder: str | os.PathLike, say: Callable[[str], None]
    ):
        """The tokenizer; a vocabulary that is trained is written to `folder`, or found there.

        Raises:
          UserError: when there is no vocabulary and no size, or the text does not suffice for the size.
        """
        if self.vocab_file:
            return load_tokenizer(self.vocab_file, self.do_lower_case)
        if not self.vocab_size:
            raise UserError("--vocab_file is missing; or give --vocab_size to train a vocabulary on the text")
        if not any(Path(folder, name).exists() for name in (WORDPIECE_FILE, SENTENCEPIECE_FILE)):
            say(f"training a {self.vocab_kind} vocabulary of {self.vocab_size:,} pieces")
            texts = corpus.read_texts(sources, text_field)
            first = next(texts, None)
            if first is None:
                raise UserError(f"no usable documents in {', '.join(source.name for source in sources)}")
            settings = self.training_settings()
            train_vocabulary(
                self.vocab_kind,
                itertools.chain([first], texts),
                self.vocab_size,
                settings["do_lower_case"],
                os.fspath(folder),
            )
        return load_tokenizer(os.fspath(folder))


def open_or_prepare(
    specs: list[str],
    folder: str | os.PathLike,
    vocabulary: VocabularyOptions,
    options: TextOptions,
    say: Callable[[str], None],
    *,
    progress: prepare.Progress | None = None,
    flag: str = "--input_file",
    tokenizer=None,
) -> list[TokenStore]:
    """One token store for each entry of --input_file: as it is, or prepared into `folder` unless it lies there already.

    The vocabulary is that of `tokenizer`, else the given one, else that of a store among the inputs, else trained.
    What is prepared gets its name from a hash of sources, vocabulary and settings: only the same inputs find it again.

    Arguments:
      specs: entries of --input_file.
      folder: local cache folder.
      say: shows the user a line of text.
      progress: see `prepare.prepare`.
      flag: how the user named the inputs.

    Raises:
      UserError: as `prepare.prepare`; and when a store was made with another vocabulary than the one in use.
    """
    stores: dict[str, TokenStore] = {}
    sources: dict[str, list[Source]] = {}
    for spec in specs:
        if corpus.kind_of(spec, flag) == "store":
            stores[spec] = TokenStore.open(spec, flag)
        else:
            sources[spec] = corpus.find_sources(spec, flag)
    if tokenizer is None:
        tokenizer = _choose_tokenizer(vocabulary, options, stores, sources, Path(folder), say)
    for spec, store in stores.items():
        if store.metadata["tokenizer_fingerprint"] != tokenizer.fingerprint:
            raise UserError(
                f"{flag}: the token store {spec} was made with another vocabulary or casing than is used here"
            )
    settings = prepare.text_settings(options.sentence_splitting, options.text_field)
    for spec in sources:
        facts = [source.facts for source in sources[spec]]
        target = Path(folder, f"prepared-{_key(FORMAT_VERSION, tokenizer.fingerprint, settings, facts)}")
        if store := _find_prepared(target, flag):
            stores[spec] = store
            say(f"{spec}: already prepared in {target}")
            continue
        if target.exists():
            say(f"{target} is damaged and is made again")
            shutil.rmtree(target)
        say(f"{spec}: preparing into {target}")
        stores[spec] = prepare.prepare(
            [spec], tokenizer, target, progress=progress, flag=flag, **dataclasses.asdict(options)
        )
        report(stores[spec], say)
    return [stores[spec] for spec in specs]


def _find_prepared(folder: Path, flag: str) -> TokenStore | None:
    """The store in a folder of the cache; None if there is none, or a damaged one."""
    if not is_token_store(folder, flag):
        return None
    try:
        store = TokenStore.open(folder, flag)
        store.tokenizer  # noqa: B018 (opened to be checked)
    except DamagedStoreError:
        return None
    return store


def report(store: TokenStore, say: Callable[[str], None]) -> None:
    """Shows the totals of a new store, and what is odd about it."""
    say(prepare.totals(store))
    for warning in prepare.warnings(store):
        say(f"warning: {warning}")


def check_same(
    store: TokenStore, sources: list[Source], settings: dict[str, Any], fingerprint: str | None = None
) -> None:
    """Makes sure that `store` is what preparing these sources would make.

    Arguments:
      settings: as given to `prepare.prepare`, with those of `prepare.text_settings`.
      fingerprint: of the tokenizer, when it is not a trained one.

    Raises:
      UserError: naming the first difference.
    """
    had = store.metadata["settings"]
    differences = [
        f"--{name} was {had.get(name)}, now it is {settings.get(name)}"
        for name in sorted(had.keys() | settings.keys())
        if had.get(name) != settings.get(name)
    ]
    if fingerprint and fingerprint != store.metadata["tokenizer_fingerprint"]:
        differences.append("it was made with another vocabulary or casing")
    differences += _source_differences(store.metadata["sources"], [source.facts for source in sources])
    if differences:
        raise UserError(f"--output_dir: {store.folder} holds a token store that was made differently: {differences[0]}")


def _source_differences(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[str]:
    """Compares names without folders (a corpus may move), sizes and times."""
    old_names, new_names = ([_short_name(facts["path"]) for facts in sources] for sources in (old, new))
    yield from (f"{name} was not part of it" for name in Counter(new_names) - Counter(old_names))
    yield from (f"{name} was part of it" for name in Counter(old_names) - Counter(new_names))
    if old_names != new_names:
        yield "its files came in another order"
    for name, before, now in zip(new_names, old, new):
        if {**before, "path": None} != {**now, "path": None}:
            yield f"{name} has changed since"


def _choose_tokenizer(vocabulary, options, stores, sources, folder: Path, say):
    if stores and not vocabulary.vocab_file:
        spec, store = next(iter(stores.items()))
        if vocabulary.do_lower_case not in (None, store.metadata["do_lower_case"]):
            made = store.metadata["do_lower_case"]
            raise UserError(f"--do_lower_case={vocabulary.do_lower_case}: the token store {spec} was made with {made}")
        return store.tokenizer
    texts = [source for group in sources.values() for source in group]
    key = _key(vocabulary.training_settings(), options.text_field, [source.facts for source in texts])
    return vocabulary.load_or_train(texts, options.text_field, folder / f"vocabulary-{key}", say)


def _key(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _short_name(path: str) -> str:
    return path if path.startswith("tfds:") else os.path.basename(path)
