"""Every recipe is read by the command line, leaves no setting to a default that may change, and runs as its twin."""

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import small_bert
import small_tasks

from bert_jax import finetuning_options, several_runs, task_data
from bert_jax.config import BertConfig
from bert_jax.main import main, parse
from bert_jax.modes.pretrain_options import apply_defaults, data_config
from bert_jax.schedule import schedule_from
from input_pipeline.token_store import TokenStore
from launch import made_up_tasks

RECIPES = sorted((Path(__file__).parents[1] / "launch" / "recipes").glob("*.flags"))
PATHS = {
    "pretrain": ["--input_file=store", "--output_dir=out"],
    "prepare": ["--vocab_file=vocab.txt", "--output_dir=out"],
    "finetune": ["--data_dir=data", "--init_checkpoint=bert", "--output_dir=out"],
}


def parsed(recipe):
    mode = next(mode for mode in PATHS if f"--mode={mode}" in recipe.read_text().splitlines())
    return mode, parse(["bert_jax", f"--flagfile={recipe}", *PATHS[mode]])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe(recipe):
    assert recipe.read_text().startswith("# ")
    assert max(map(len, recipe.read_text().splitlines())) <= 120
    mode, flags = parsed(recipe)
    said = []
    if mode == "prepare":
        assert flags.input_file and flags.text_field == "text"
        return
    if mode == "pretrain":
        continues = flags.model is None  # the model that is there already
        if continues:
            flags.bert_config_file = "bert_config.json"
        apply_defaults(flags, said.append)
        model = BertConfig.named("base" if continues else flags.model)
        assert data_config(flags).max_seq_length <= model.max_position_embeddings
    else:
        finetuning_options.check(flags)
        searched = several_runs.searched(flags)
        name = task_data.task_name(flags) if flags.task_name else "mrpc"
        kind = "classification" if name == "glue" else task_data.kind_of(name)
        finetuning_options.apply_defaults(flags, kind, bool(flags.version_2_with_negative), said.append, searched)
        for setting in searched:
            setattr(flags, setting, several_runs.GRID[setting][0])
        assert flags.optimizer == "adamw"
        assert flags.max_seq_length <= BertConfig.named("base").max_position_embeddings
    assert said == []
    schedule = schedule_from(flags, examples_per_epoch=5000)
    assert 0 < schedule.num_warmup_steps <= schedule.num_train_steps // (3 if flags.optimizer == "lamb" else 10)


def test_the_features_are_those_of_a_frozen_encoder():
    _, flags = parsed(next(path for path in RECIPES if path.stem == "conll2003_features"))
    assert flags.freeze_encoder and flags.head_features == "concat_last_4" and flags.head_lstm == ["768", "768"]


@pytest.mark.parametrize(
    "name",
    [
        *("bert_base_phase1", "bert_large_phase2", "glue", "squad1", "squad2", "swag", "conll2003"),
        *("wikipedia_tfds", "wikipedia_dump", "multilingual", "lamb_large_phase1", "lamb_large_phase2", "domain"),
    ],
)
def test_there_is_a_recipe(name):
    assert name in [path.stem for path in RECIPES]


SENTENCES = ["the cat sat on the mat.", "a big dog ran under it.", "and then it was here.", "the tree was small."]
XNLI = "language\tgold_label\tsentence1\tsentence2\n" + "en\tneutral\tthe cat\ta dog\n" * 4


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Two small languages as text, files of all tasks, and a model of the size of the twins' sequences."""
    folder = tmp_path_factory.mktemp("inputs")
    for language, count in (("one", 60), ("two", 12)):
        rng = np.random.default_rng(count)
        documents = ["\n".join(rng.choice(SENTENCES, 6)) for _ in range(count)]
        (folder / f"{language}.txt").write_text("\n\n".join(documents) + "\n")
    small_bert.tokenizer().save(folder)
    for name, layers in (("bert", 1), ("deep_bert", 4)):
        config = dataclasses.replace(small_tasks.CONFIG, num_hidden_layers=layers, max_position_embeddings=64)
        small_bert.write_run(folder / name, small_bert.loaded(config))
    for name, text in made_up_tasks.make((24, 8)):
        path = folder / "data" / (f"glue/{name}" if name.startswith("MRPC") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    more = {
        "squad/train-v2.0.json": small_tasks.span_2(np.random.default_rng(0), 16, True),
        "squad/dev-v2.0.json": small_tasks.span_2(np.random.default_rng(1), 8, True),
        "swag/train.csv": small_tasks.multiple_choice(np.random.default_rng(0), 16, True),
        "swag/val.csv": small_tasks.multiple_choice(np.random.default_rng(1), 8, True),
        "xnli/multinli.train.en.tsv": "premise\thypo\tlabel\n" + "the cat\ta dog\tneutral\n" * 16,
        "xnli/xnli.dev.tsv": XNLI,
        "xnli/xnli.test.tsv": XNLI,
    }
    for name, text in more.items():
        path = folder / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def of_mode(wanted):
    return [recipe for recipe in RECIPES if parsed(recipe)[0] == wanted]


def each(recipes):
    return pytest.mark.parametrize("recipe", recipes, ids=lambda path: path.stem)


class Twins:
    """Runs the twins of recipes in this process, a few steps each.

    Args:
        inputs: what they read.
        folder: for what they write; the output folder of a recipe has its name.
    """

    def __init__(self, inputs, folder):
        self.folder = folder
        self._inputs = inputs
        self._tasks = small_tasks.Tasks(folder / "compiled")

    def run(self, recipe, **flags):
        """Returns the exit code."""
        both = self.folder / f"{recipe.stem}.flags"
        both.write_text(f"--flagfile={recipe}\n--flagfile={recipe.parent / 'cpu' / parsed(recipe)[0]}.flags\n")
        return self._tasks.run(flagfile=both, output_dir=self.folder / recipe.stem, **flags)

    def pretrained(self, recipe):
        """The output folder of a recipe for pretraining, run with what it continues."""
        output_dir = self.folder / recipe.stem
        if not output_dir.exists():
            flags = {"num_train_steps": 2, "num_warmup_steps": 1, "train_batch_size": 8, "log_every_steps": 1}
            first = recipe.stem.replace("phase2", "phase1") if recipe.stem.endswith("phase2") else "bert_base_phase1"
            before = self.pretrained(recipe.with_stem(first)) if recipe.stem != first else None
            if before is None or recipe.stem == "multilingual":
                flags["vocab_file"] = self._inputs / "vocab.txt"
            elif "--restore_from" in recipe.read_text():
                flags |= {"restore_from": before, "num_train_steps": 4}
            else:
                flags["init_checkpoint"] = before
            texts = f"{self._inputs / 'one.txt'},{self._inputs / 'two.txt'}"
            assert self.run(recipe, input_file=texts, max_eval_steps=1, **flags) == 0
        return output_dir


@pytest.fixture(scope="module")
def twins(inputs, tmp_path_factory):
    return Twins(inputs, tmp_path_factory.mktemp("twins"))


def twin_of(recipe):
    """The flags of a twin."""
    mode, _ = parsed(recipe)
    small = recipe.parent / "cpu" / f"{mode}.flags"
    return parse(["bert_jax", f"--flagfile={recipe}", f"--flagfile={small}"]).flag_values_dict()


@each([path for path in RECIPES if path.stem.startswith("bert_large")])
def test_base_and_large_have_the_same_twin(recipe):
    assert twin_of(recipe) == twin_of(recipe.with_stem(recipe.stem.replace("large", "base")))


@each([recipe for recipe in of_mode("pretrain") if not recipe.stem.startswith("bert_large")])
def test_a_twin_pretrains_with_all_that_the_recipe_is_about(twins, recipe):
    output_dir = twins.pretrained(recipe)
    assert all(map(np.isfinite, small_tasks.losses(output_dir)))
    flags = json.loads((output_dir / "run.json").read_text())["flags"]
    _, meant = parsed(recipe)
    for name in ("optimizer", "learning_rate", "lr_decay_power", "weight_decay", "clip_norm", "sampling_exponent"):
        assert flags[name] == getattr(meant, name)
    assert (flags["trust_ratio"], flags["restart_schedule"]) == (meant.trust_ratio, meant.restart_schedule)
    steps = [json.loads(line)["step"] for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == ([3, 4] if flags["restore_from"] else [1, 2])


@each(of_mode("finetune"))
def test_a_twin_is_fine_tuned(twins, inputs, recipe):
    folder = inputs / "data"
    names = ("glue", "xnli", "squad", "swag", "conll2003")
    data_dir = folder / next(name for name in names if recipe.stem.startswith(name))
    more = {"task_name": "mrpc"} if recipe.stem == "glue_grid" else {}
    model = "deep_bert" if "concat_last_4" in recipe.read_text() else "bert"
    assert twins.run(recipe, data_dir=data_dir, init_checkpoint=inputs / model, **more) == 0
    assert list((twins.folder / recipe.stem).rglob("eval_results.json"))


def test_a_twin_prepares_the_text_that_is_at_hand(twins):
    recipe = next(path for path in RECIPES if path.stem == "wikipedia_tfds")
    assert twins.run(recipe, vocab_size=500) == 0
    assert TokenStore.open(str(twins.folder / recipe.stem)).num_documents > 500


def test_a_dump_is_read_as_wikiextractor_writes_it(tmp_path, monkeypatch):
    recipe = next(path for path in RECIPES if path.stem == "wikipedia_dump")
    page = {"id": "12", "url": "https://a.org/wiki?curid=12", "title": "Cat", "text": "A cat.\nIt sat. It ran."}
    lines = [json.dumps(page | {"id": str(number)}) for number in range(3)]
    (tmp_path / "wikipedia.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    monkeypatch.chdir(tmp_path)
    assert main(["bert_jax", f"--flagfile={recipe}", "--vocab_size=29", "--output_dir=store", "--num_workers=1"]) == 0
    store = TokenStore.open("store")
    assert (store.num_documents, store.num_sentences) == (3, 9)
