from pathlib import Path

import pytest

from input_pipeline import tfds_corpus, tfds_tasks
from input_pipeline.errors import UserError
from input_pipeline.glue_data import LANGUAGES, TASKS
from input_pipeline.host_tensorflow import tf
from input_pipeline.task_examples import Answer


def write(data_dir, name, splits):
    """Writes a data set as TFDS keeps it; splits: name -> examples, with the features that TFDS knows."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_dir)
    features, folder = builder.info.features, Path(builder.data_dir)
    folder.mkdir(parents=True)
    template = tfds.core.ShardedFileTemplate(
        data_dir=folder, dataset_name=builder.name, template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    )
    infos = []
    for split, examples in splits.items():
        records = [features.serialize_example(example) for example in examples]
        with tf.io.TFRecordWriter(f"{folder}/{builder.name}-{split}.tfrecord-00000-of-00001") as writer:
            for record in records:
                writer.write(record)
        infos.append(tfds.core.SplitInfo(split, [len(records)], sum(map(len, records)), template))
    tfds.folder_dataset.write_metadata(data_dir=folder, features=features, split_infos=infos)


def nli(*labels):
    return [{"idx": i, "premise": f"p{i}", "hypothesis": f"h{i}", "label": label} for i, label in enumerate(labels)]


def pairs(*rows):
    return [{"idx": i, "sentence1": f"a{i}", "sentence2": f"b{i}", "label": label} for i, label in rows]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    write(folder, "glue/mnli", {"train": nli("neutral", "entailment", "contradiction"), "test_matched": nli(-1)})
    write(folder, "glue/ax", {"test": nli(-1, -1)})
    write(folder, "glue/mrpc", {"train": pairs((9, 0), (4, 1)), "test": pairs((1, -1), (0, -1))})
    write(folder, "glue/stsb", {"train": pairs((1, 3.8), (0, 4.75)), "test": pairs((0, -1.0))})
    rows = [{"idx": 1, "sentence": 'é "b', "label": 0}, {"idx": 0, "sentence": "a", "label": -1}]
    write(folder, "glue/cola", {"train": rows})
    rows = [
        {
            "premise": {one: f"p{i} {one}" for one in LANGUAGES},
            "hypothesis": {one: f"h{i} {one}" for one in LANGUAGES},
            "label": label,
        }
        for i, label in enumerate(("contradiction", "neutral"))
    ]
    write(folder, "xnli", {"validation": rows})
    answers, none = {"text": ["b", "c"], "answer_start": [2, 4]}, {"text": [], "answer_start": []}
    row = {"id": "x1", "title": "t", "question": "q?", "context": "a b c", "answers": answers}
    write(folder, "squad/v1.1", {"validation": [row]})
    row |= {"plausible_answers": none, "is_impossible": False}
    impossible = row | {"id": "x2", "answers": none, "is_impossible": True}
    write(folder, "squad/v2.0", {"validation": [row, impossible]})
    rows = [
        {"tokens": tokens, "ner": tags, "pos": ["NN"] * len(tokens), "chunks": ["O"] * len(tokens)}
        for tokens, tags in ((["A", "B", "c"], ["B-PER", "I-PER", "O"]), ([], []), (["d"], ["O"]))
    ]
    write(folder, "conll2003", {"dev": rows})
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch, data_dir):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    tfds_corpus.open_split.cache_clear()


def short(*args, **options):
    return [example[:-1] for example in tfds_tasks.read(*args, **options).examples]


def test_splits():
    assert set(TASKS) == {task for task in TASKS if tfds_tasks.splits(task)}
    assert tfds_tasks.splits("rte") == ("train", "dev", "test")
    assert tfds_tasks.splits("mnli") == (
        "train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched", "diagnostic"
    )  # fmt: skip
    assert tfds_tasks.splits("swag") == ()
    for task, known in TASKS.items():
        assert tfds_tasks.splits(task) == tuple(known.files)


def test_labels_go_by_name():
    expected = [("0", "p0", "h0", "neutral"), ("1", "p1", "h1", "entailment"), ("2", "p2", "h2", "contradiction")]
    assert short("mnli", "train") == expected
    data = tfds_tasks.read("mnli", "train")
    assert (data.source, data.examples[0].where) == ("tfds:glue/mnli:train", "tfds:glue/mnli:train, example 1")
    assert short("xnli", "train", language="en") == expected
    for name in ("glue/mnli:2.0.0", "glue", "glue:2.0.0"):
        assert short("mnli", "train", name) == expected


def test_what_has_no_label():
    assert short("mnli", "test_matched") == [("0", "p0", "h0", None)]
    assert short("mnli", "diagnostic") == short("ax", "test") == [("0", "p0", "h0", None), ("1", "p1", "h1", None)]
    assert short("stsb", "test") == [("0", "a0", "b0", None)]
    assert short("cola", "train") == [("0", "a", None, None), ("1", 'é "b', None, "0")]


def test_the_order_is_that_of_the_files():
    assert short("mrpc", "train") == [("0", "a4", "b4", "1"), ("1", "a9", "b9", "0")]
    assert short("mrpc", "test") == [("0", "a0", "b0", None), ("1", "a1", "b1", None)]


def test_scores():
    assert [example[-1] for example in short("stsb", "train")] == [4.75, 3.8]


def test_xnli():
    assert short("xnli", "dev", language="zh") == [
        ("0", "p0 zh", "h0 zh", "contradiction"),
        ("1", "p1 zh", "h1 zh", "neutral"),
    ]
    assert len(short("xnli", "dev")) == 2 * len(LANGUAGES)
    assert short("xnli", "dev_sw", "xnli")[1] == ("1", "p1 sw", "h1 sw", "neutral")
    assert len(short("xnli", "train", "xnli")) == 3


def test_questions():
    answers = (Answer("b", 2), Answer("c", 4))
    assert short("squad/v1.1", "dev") == [("x1", "q?", "a b c", answers, False)]
    assert short("squad", "dev") == short("squad/v1.1", "dev")
    assert short("squad", "dev", "squad/v2.0") == short("squad/v2.0", "dev")
    assert short("squad/v2.0", "dev")[1] == ("x2", "q?", "a b c", (), True)


def test_tagged_sentences():
    first, second = tfds_tasks.read("conll2003", "dev").examples
    assert first[:4] == ("0", ("A", "B", "c"), ("B-PER", "I-PER", "O"), 0)
    assert second[:4] == ("1", ("d",), ("O",), 1)
    assert second.where == "tfds:conll2003:dev, example 3"


def test_mistakes():
    with pytest.raises(UserError, match=r"--data_dir: TensorFlow Datasets has no split 'dev' of mnli, there is: train"):
        tfds_tasks.read("mnli", "dev")
    with pytest.raises(UserError, match=r"no split 'train' of swag, there is: no such task; it has cola, sst2"):
        tfds_tasks.read("swag", "train")
    with pytest.raises(UserError, match=r"no training data of XNLI in 'de', only in 'en'"):
        tfds_tasks.read("xnli", "train", language="de")
    with pytest.raises(UserError, match=r"--f: tfds:glue/mnli:validation_matched has no such split; there are: "):
        tfds_tasks.read("mnli", "dev_matched", flag="--f")
    with pytest.raises(UserError, match=r"tfds:glue/mrpc:train has no field or label 'sentence'; its fields are: "):
        tfds_tasks.read("cola", "train", "glue/mrpc")
    with pytest.raises(UserError, match=r"tfds:glue/mnli:train has no field or label 'sentence1'"):
        tfds_tasks.read("mrpc", "train", "glue/mnli")
