"""Clusters of points and of documents, and what is said about them."""

import json
import sys

import numpy as np
import pytest

import bert_jax
from bert_jax import clustering, features, partitioning
from bert_jax.clustering import Clusters
from input_pipeline.documents import Document
from input_pipeline.errors import UserError

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def bert(tiny_bert_folder):
    return bert_jax.load(tiny_bert_folder)


def vectors(bert, texts, limit=20, pooling="mean", **arguments):
    spec = features.feature_spec(bert, (-1,), "concat", pooling)
    mesh = partitioning.make_mesh()
    return clustering.document_vectors(bert, spec, texts, mesh=mesh, limit=limit, **arguments)


def test_long_documents_lose_nothing(bert):
    """Seven words in pieces of at most four tokens of text: 4 and 3, weighted with their tokens."""
    text = "the cat sat on a red mat"
    done = []
    both, short = vectors(bert, [text, "big tree"], limit=6, advance=lambda: done.append(1))
    pieces = bert_jax.encode(bert, ["the cat sat on", "a red mat"])
    np.testing.assert_allclose(both, (6 * pieces[0] + 5 * pieces[1]) / 11, atol=1e-5)
    np.testing.assert_allclose(short, bert_jax.encode(bert, ["big tree"])[0], atol=1e-5)
    assert len(done) == 2
    largest = vectors(bert, [text], limit=6, pooling="max")[0]
    pieces = bert_jax.encode(bert, ["the cat sat on", "a red mat"], pooling="max")
    np.testing.assert_allclose(largest, pieces.max(0), atol=1e-5)


def test_progress_comes_while_pieces_are_computed(bert, monkeypatch):
    monkeypatch.setattr(clustering, "_CPU_WINDOW_TOKENS", 64)
    told, shown = [], []

    class Texts(list):
        def __iter__(self):
            for text in list.__iter__(self):
                shown.append(len(told))
                yield text

    vectors(
        bert, Texts(["the cat sat on a red mat"] * 200 * partitioning.make_mesh().size), advance=lambda: told.append(1)
    )
    assert 0 < shown[len(shown) // 2] < len(shown) // 2 and len(told) == len(shown)


def test_short_documents_are_those_of_encode(bert):
    texts = ["the cat", "a dog ran", "", "tree"]
    np.testing.assert_allclose(vectors(bert, texts), bert_jax.encode(bert, texts), atol=1e-5)


def test_centred_and_normal():
    rng = np.random.default_rng(0)
    points = clustering.centred_and_normal(rng.standard_normal((30, 5)) + 7)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, atol=1e-6)
    assert np.abs(points.mean(0)).max() < 0.2
    assert (clustering.centred_and_normal(np.ones((3, 2))) == 0).all()


def blobs(sizes=(30, 20, 10)):
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(3, 8)
    return np.concatenate([centre + rng.standard_normal((n, 8)) / 4 for centre, n in zip(centres, sizes)])


@pytest.mark.parametrize("number", [3, None])
def test_blobs_are_found_the_largest_first(number):
    points = blobs()
    order = np.random.default_rng(1).permutation(len(points))
    clusters = clustering.cluster(points[order], number, 1)
    np.testing.assert_array_equal(clusters.assignment, np.repeat([0, 1, 2], (30, 20, 10))[order])
    centre = points[:30].mean(0)
    members = clusters.assignment == 0
    np.testing.assert_allclose(
        clusters.distances[members], np.linalg.norm(points[order][members] - centre, axis=1), rtol=1e-5
    )
    assert clusters.silhouette > 0.9
    assert list(clusters.tried) == ([] if number else list(range(2, 21)))
    again = clustering.cluster(points[order], number, 1)
    np.testing.assert_array_equal(again.assignment, clusters.assignment)


def test_few_and_equal_points():
    assert clustering.cluster(np.zeros((3, 2), np.float32), 2, 0).assignment.tolist() == [0, 0, 0]
    two = clustering.cluster(np.array([[0.0, 1], [1, 0]]), None, 0)
    assert sorted(two.assignment) == [0, 1] and two.silhouette == 0.0
    assert set(clustering.cluster(np.eye(3), None, 0).tried) == {2}
    assert clustering.cluster(np.eye(4), 4, 0).assignment.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [2, 5, 12, 60])
def test_positions_keep_neighbours_together(count):
    points = np.concatenate([blobs((count // 2, 0, 0)), -blobs((count - count // 2, 0, 0))])
    plane, method = clustering.positions(points, 0)
    assert plane.shape == (count, 2) and np.isfinite(plane).all()
    assert method == ("t-SNE" if count >= 10 else "PCA")
    left, right = plane[: count // 2].mean(0), plane[count // 2 :].mean(0)
    own = np.linalg.norm(plane[: count // 2] - left, axis=1)
    assert (own < np.linalg.norm(plane[: count // 2] - right, axis=1)).all()
    np.testing.assert_array_equal(plane, clustering.positions(points, 0)[0])


def test_equal_points_have_one_position():
    plane, _ = clustering.positions(np.ones((30, 4)), 0)
    assert (plane == 0).all()


DOCUMENTS = [
    Document("a", "The engine of a car, the brakes.", "autos"),
    Document("b", "My car has an old engine", "autos"),
    Document("c", "car & driver", None),
    Document("d", "A planet and its moon", "space"),
    Document("e", "the moon " * 100, "autos"),
]
FOUND = Clusters(np.array([0, 0, 0, 1, 1]), np.array([0.3, 0.1, 0.2, 0.5, 0.4]), 0.5, {})


def test_words_labels_and_representatives():
    first, second = clustering.describe(DOCUMENTS, FOUND)
    assert first["cluster"] == 0 and first["size"] == 3 and first["labels"] == {"autos": 2}
    assert first["words"][:2] == ["car", "engine"] and "my" not in first["words"]
    assert [one["id"] for one in first["representatives"]] == ["b", "c", "a"]
    assert second["words"][0] == "moon" and second["labels"] == {"autos": 1, "space": 1}
    assert len(second["representatives"][0]["text"]) == 200
    assert clustering.top_words(["the of", "and"], np.array([0, 1])) == [[], []]


def test_agreement_is_of_those_with_a_label():
    labels = ["x", "x", None, "y", "y"]
    assert clustering.agreement(labels, np.array([1, 1, 0, 0, 0])) == pytest.approx(
        {"adjusted_rand_index": 1.0, "normalized_mutual_information": 1.0}
    )
    assert clustering.agreement([None] * 5, FOUND.assignment) is None


def test_lines_have_the_order_of_the_documents():
    plane = np.arange(10.0).reshape(5, 2)
    rows = [0, 1, None, 2, 3, 4]
    documents = [*DOCUMENTS[:2], Document("empty", " ", None), *DOCUMENTS[2:]]
    lines = [json.loads(line) for line in clustering.lines_of(documents, rows, FOUND, plane)]
    assert lines[0] == {"id": "a", "cluster": 0, "distance": 0.3, "label": "autos", "x": 0.0, "y": 1.0}
    assert lines[2] == {"id": "empty", "cluster": None, "distance": None, "x": None, "y": None}
    assert [line["id"] for line in lines] == ["a", "b", "empty", "c", "d", "e"]


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"needs scikit-learn: pip install scikit-learn"):
        clustering.check_installed()
