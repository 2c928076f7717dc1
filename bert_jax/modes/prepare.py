"""--mode=prepare: text -> token store. Also how --mode=pretrain gets at its text."""

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bert_jax.beside_checkpoint import take_vocabulary
from input_pipeline import corpus, prepare, prepared_inputs
from input_pipeline.errors import UserError
from input_pipeline.prepared_inputs import TextOptions, VocabularyOptions
from input_pipeline.token_store import TokenStore, check_vacant, is_token_store

INTERRUPTED = 130  # exit code after SIGINT, as a shell gives it
SECONDS_BETWEEN_LINES = 10.0


def run(flags: Any) -> int:
    """Makes the token store --output_dir of all of --input_file, or finds that it is there already.

    Raises:
      UserError: when a flag is missing or wrong, or --output_dir holds anything else.
    """
    if not flags.input_file:
        raise UserError("--mode=prepare needs --input_file: text files, globs, folders, tfds:NAME or builtin")
    if not flags.output_dir:
        raise UserError("--mode=prepare needs --output_dir: the folder of the token store to be")
    try:
        return _run(flags)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED


def prepare_inputs(
    flags: Any, folder: str, say: Callable[[str], None], flag: str = "input_file", tokenizer: Any = None
) -> list[TokenStore]:
    """The token stores of a flag's entries, prepared into `folder` where they are text; `open_or_prepare` with flags.

    Arguments:
      flags: absl flags.
      folder: local cache folder.
      say: shows the user a line.
      flag: name of the flag with the inputs.
      tokenizer: to use instead of what the flags say.

    Raises:
      UserError: as `prepared_inputs.open_or_prepare`.
    """
    with ProgressDisplay() as progress:
        return prepared_inputs.open_or_prepare(
            getattr(flags, flag),
            folder,
            _vocabulary_options(flags),
            _text_options(flags),
            say,
            progress=progress,
            flag=f"--{flag}",
            tokenizer=tokenizer,
        )


def _run(flags: Any) -> int:
    take_vocabulary(flags)
    vocabulary, options = _vocabulary_options(flags), _text_options(flags)
    exists = is_token_store(flags.output_dir, "--output_dir")
    if not exists:
        check_vacant(flags.output_dir)
    sources = [source for spec in flags.input_file for source in corpus.find_sources(spec)]
    settings = vocabulary.training_settings()
    if exists:
        store = TokenStore.open(flags.output_dir, "--output_dir")
        tokenizer = vocabulary.load_or_train([], options.text_field, "", print) if vocabulary.vocab_file else None
        all_settings = prepare.text_settings(options.sentence_splitting, options.text_field) | settings
        prepared_inputs.check_same(store, sources, all_settings, tokenizer and tokenizer.fingerprint)
        print(f"{store.folder} is complete already: {prepare.totals(store)}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = vocabulary.load_or_train(sources, options.text_field, folder, print)
    if flags.runner:
        from input_pipeline import beam_prepare

        store = beam_prepare.prepare(
            flags.input_file,
            tokenizer,
            flags.output_dir,
            runner=flags.runner,
            beam_options=flags.beam_options,
            sentence_splitting=options.sentence_splitting,
            text_field=options.text_field,
            settings=settings,
        )
    else:
        with ProgressDisplay() as progress:
            store = prepare.prepare(
                flags.input_file,
                tokenizer,
                flags.output_dir,
                sentence_splitting=options.sentence_splitting,
                text_field=options.text_field,
                num_workers=options.num_workers,
                progress=progress,
                settings=settings,
            )
    prepared_inputs.report(store, print)
    return 0


def _vocabulary_options(flags: Any) -> VocabularyOptions:
    return VocabularyOptions(flags.vocab_file, flags.do_lower_case, flags.vocab_size, flags.vocab_kind)


def _text_options(flags: Any) -> TextOptions:
    return TextOptions(flags.sentence_splitting, flags.text_field, flags.num_workers)


class ProgressDisplay:
    """Shows `prepare.Progress` on standard error: a bar on a terminal, else a line now and then."""

    def __enter__(self):
        self._start = self._last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("preparing"),
                BarColumn(),
                DownloadColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("")
        return self

    def __exit__(self, *_):
        if self._bar:
            self._bar.stop()

    def __call__(self, done: int, total: int, counts: dict[str, int]) -> None:
        now = time.monotonic()
        rate = counts["tokens"] / max(now - self._start, 1e-9)
        text = f"{counts['documents']:,} documents, {rate:,.0f} tokens/s"
        if self._bar:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (now - self._start) * (total - done) / max(done, 1)
            print(
                f"preparing: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {text}, {left:,.0f} s left",
                file=sys.stderr,
                flush=True,
            )
