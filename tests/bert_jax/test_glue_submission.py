import os
import zipfile

import numpy as np
import pytest

from bert_jax.glue_submission import ROWS, missing_tables, write, zip_folder
from input_pipeline.errors import UserError
from input_pipeline.glue_data import TASKS

LABELS = {name: task.labels for task in TASKS.values() for name in task.submission.values()}


def test_the_tables_are_those_of_the_tasks():
    assert sorted(ROWS) == sorted(LABELS)


def test_a_table_of_labels(tmp_path):
    path = write(tmp_path / "new", "RTE.tsv", ["0", "2", "1"], ["entailment", "not_entailment", "entailment"])
    assert path == str(tmp_path / "new" / "RTE.tsv")
    expected = b"index\tprediction\n0\tentailment\n2\tnot_entailment\n1\tentailment\n"
    assert (tmp_path / "new" / "RTE.tsv").read_bytes() == expected


def test_numbers_are_clipped_and_have_decimals(tmp_path):
    write(tmp_path, "STS-B.tsv", ["0", "1", "2", "3"], [np.float32(-0.25), 5.125, np.float32(2.5), 3])
    expected = b"index\tprediction\n0\t0.000000\n1\t5.000000\n2\t2.500000\n3\t3.000000\n"
    assert (tmp_path / "STS-B.tsv").read_bytes() == expected


@pytest.mark.parametrize("name", ROWS)
def test_every_table_takes_its_labels_only(tmp_path, name):
    labels = LABELS[name] or (2.5,)
    write(tmp_path, name, [str(number) for number in range(len(labels))], labels)
    wrong = float("nan") if labels == (2.5,) else "yes"
    with pytest.raises(UserError, match=f"{name}: the prediction of 7 is '?{wrong}'?, not "):
        write(tmp_path, name, ["7"], [wrong])


@pytest.mark.parametrize("ids", [["0", "0"], ["0", "train-1"], ["0", ""], ["0", "-1"], ["0", "²"]])
def test_an_index_that_is_none(tmp_path, ids):
    with pytest.raises(UserError, match=r"WNLI\.tsv: .*index"):
        write(tmp_path, "WNLI.tsv", ids, ["0", "1"])
    assert not list(tmp_path.iterdir())


def test_as_many_predictions_as_examples(tmp_path):
    with pytest.raises(ValueError, match="1 predictions of 2 examples"):
        write(tmp_path, "WNLI.tsv", ["0", "1"], ["0"])


def fill(folder, names):
    for name in names:
        label = (LABELS[name] or (1.0,))[0]
        write(folder, name, [str(row) for row in range(ROWS[name])], [label] * ROWS[name])


def test_the_zip_is_flat_and_always_the_same(tmp_path):
    names = ["WNLI.tsv", "CoLA.tsv"]
    fill(tmp_path / "a", names)
    fill(tmp_path / "b", reversed(names))
    (tmp_path / "a" / "eval_results.json").write_text("{}")
    os.utime(tmp_path / "b" / "CoLA.tsv", (0, 0))
    path, notes = zip_folder(tmp_path / "a")
    other, _ = zip_folder(tmp_path / "b")
    with zipfile.ZipFile(path) as packed:
        assert packed.namelist() == ["CoLA.tsv", "WNLI.tsv"] and packed.testzip() is None
        assert packed.read("WNLI.tsv") == (tmp_path / "a" / "WNLI.tsv").read_bytes()
    with open(path, "rb") as one, open(other, "rb") as two:
        assert one.read() == two.read()
    assert notes == [
        "submission.zip has 2 of 11 tables; missing: SST-2.tsv, MRPC.tsv, QQP.tsv, STS-B.tsv, MNLI-m.tsv, MNLI-mm.tsv, "
        "QNLI.tsv, RTE.tsv, AX.tsv"
    ]
    assert zip_folder(tmp_path / "a") == (path, notes), "the zip itself is no table"
    assert missing_tables(tmp_path / "a") == notes[0]
    assert missing_tables(tmp_path) is None, "there is no zip to be submitted"


def test_a_table_of_another_length_is_said(tmp_path):
    write(tmp_path, "WNLI.tsv", ["0", "1"], ["0", "1"])
    assert "predictions in WNLI.tsv: 2; examples in the leaderboard's test set: 146" in zip_folder(tmp_path)[1]


def test_all_eleven_leave_nothing_to_say(tmp_path):
    fill(tmp_path, ROWS)
    assert zip_folder(tmp_path)[1] == [] and missing_tables(tmp_path) is None


def test_a_folder_without_tables(tmp_path):
    with pytest.raises(UserError, match=r"no table of predictions in .* looked for CoLA\.tsv, SST-2\.tsv"):
        zip_folder(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["CoLA", "SST-2", "MRPC", "STS-B", "WNLI"])
def test_rows_are_those_of_the_test_files(shared, name):
    data = (shared / "data" / "glue" / name / "test.tsv").read_bytes()
    assert data.rstrip(b"\n").count(b"\n") == ROWS[f"{name}.tsv"]
