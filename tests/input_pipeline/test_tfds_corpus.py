import types

import pytest

from input_pipeline import corpus, prepare, tfds_corpus
from input_pipeline.errors import UserError
from input_pipeline.host_tensorflow import tf
from input_pipeline.tokenization import WordPieceTokenizer


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder with a small data set, known by its files only."""
    import tensorflow_datasets as tfds

    folder = tmp_path_factory.mktemp("tfds")
    features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "title": tfds.features.Text(), "id": tf.int64})
    for config in ("en", "de"):
        version = folder / "tiny_texts" / config / "1.0.0"
        version.mkdir(parents=True)
        splits = []
        template = tfds.core.ShardedFileTemplate(
            data_dir=version, dataset_name="tiny_texts", template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        )
        for split, count in (("train", 20), ("test", 2)):
            examples = [{"text": f"{config} text {i}. And more.", "title": f"title {i}", "id": i} for i in range(count)]
            records = [features.serialize_example(example) for example in examples]
            with tf.io.TFRecordWriter(f"{version}/tiny_texts-{split}.tfrecord-00000-of-00001") as writer:
                for record in records:
                    writer.write(record)
            splits.append(tfds.core.SplitInfo(split, [count], sum(map(len, records)), template))
        tfds.folder_dataset.write_metadata(data_dir=version, features=features, split_infos=splits)
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch, data_dir):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    tfds_corpus.open_split.cache_clear()


def texts(spec, text_field="text"):
    return sorted(text.decode() for text in tfds_corpus.read_texts(spec, text_field, "--input_file"))


def test_configs_splits_and_fields():
    assert texts("tfds:tiny_texts/de:test") == ["de text 0. And more.", "de text 1. And more."]
    assert len(texts("tfds:tiny_texts/en")) == 20
    assert len(texts("tfds:tiny_texts/en:train[:25%]")) == 5
    assert len(texts("tfds:tiny_texts/en:1.0.0:train+test")) == 22
    assert texts("tfds:tiny_texts/en:test", "title") == ["title 0", "title 1"]
    order = list(tfds_corpus.read_texts("tfds:tiny_texts/en", "text", "--input_file"))
    assert order == list(tfds_corpus.read_texts("tfds:tiny_texts/en", "text", "--input_file"))


def test_preparing(tmp_path):
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "text", "and", "more", "en", "."])
    store = prepare.prepare(["tfds:tiny_texts/en:train"], tokenizer, tmp_path / "store")
    assert (store.num_documents, store.num_sentences) == (20, 40)
    (facts,) = store.metadata["sources"]
    assert facts == {"path": "tfds:tiny_texts/en:train", "version": "1.0.0", "split": "train", "examples": 20}
    (source,) = corpus.find_sources("tfds:tiny_texts/en:train")
    assert source.size > 0


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("tfds:tiny_texts/en:dev", r"tfds:tiny_texts/en:dev has no such split; there are: \w+, \w+"),
        ("tfds:no_such_thing_at_all", r"tfds:no_such_thing_at_all cannot be opened: .*not found"),
        ("tfds:", r"tfds: is not of the form tfds:NAME"),
    ],
)
def test_mistakes(spec, problem):
    with pytest.raises(UserError, match=r"--eval_input_file: " + problem):
        tfds_corpus.size_and_facts(spec, "--eval_input_file")


def test_wrong_fields():
    with pytest.raises(UserError, match=r"no field 'body' \(--text_field\); there are: (id|text|title), "):
        texts("tfds:tiny_texts/en", "body")
    with pytest.raises(UserError, match=r"field 'id' of tfds:tiny_texts/en is no text"):
        texts("tfds:tiny_texts/en", "id")


def test_what_cannot_be_downloaded_is_told_at_once(monkeypatch):
    """TFDS itself goes on trying for minutes."""
    asked = []

    def refuse(address, timeout):
        asked.append(address)
        raise OSError("Name or service not known")

    monkeypatch.setattr(tfds_corpus.socket, "create_connection", refuse)
    monkeypatch.setattr(tfds_corpus.urllib.request, "getproxies", dict)
    builder = types.SimpleNamespace(data_dir="/data/some/1.0.0", url_infos={"http://host.example/x.zip": None})
    with pytest.raises(
        UserError, match=r"not in /data/some/1\.0\.0 .*, and host\.example cannot be reached .*not known"
    ):
        tfds_corpus._check_connection(builder)
    monkeypatch.setattr(tfds_corpus.urllib.request, "getproxies", lambda: {"http": "proxy"})
    tfds_corpus._check_connection(builder)  # it is the proxy's business
    assert asked == [("host.example", 80)]
