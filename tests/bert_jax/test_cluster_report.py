"""The page of clusters: well-formed, self-contained, and nothing in a document can break it."""

import xml.etree.ElementTree as ElementTree

import numpy as np
from html_page import Page

from bert_jax import cluster_report
from input_pipeline.documents import Document

NASTY = "</script><script>alert('1')</script> & \"x\""


def summary(number=2, **more):
    entry = {"size": 1, "words": ["a<b", "c"], "representatives": [{"id": NASTY, "text": NASTY}], "labels": {NASTY: 1}}
    clusters = [{"cluster": index, **entry} for index in range(number)]
    facts = {"documents": 2, "num_clusters": number, "silhouette": 0.25, "seed": 1, "positions": "PCA"}
    return {**facts, "clusters": clusters, **more}


def make(documents, summary, plane=None):
    plane = np.random.default_rng(0).standard_normal((len(documents), 2)) if plane is None else plane
    return cluster_report.page("my <docs>", summary, documents, np.arange(len(documents)) % 2, plane, ["odd <thing>"])


def test_a_page():
    documents = [Document(NASTY, NASTY, NASTY), Document("b", "plain", None)]
    agreement = {"adjusted_rand_index": 0.5, "normalized_mutual_information": 0.625}
    page = make(documents, summary(agreement=agreement, silhouettes={"2": 0.25, "3": 0.125}))
    parsed = Page(page)
    assert parsed.count("script") == 1 and parsed.count("circle") == 2 and not parsed.links
    assert "alert('1')" not in page and "my &lt;docs&gt;" in page and "odd &lt;thing&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    for text in ("0.500", "0.625", "0.250", "2 clusters (chosen)", "0.1250", "a&lt;b"):
        assert text in page
    ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def test_points_lie_in_the_picture_even_if_they_are_one():
    documents = [Document(str(n), "x", None) for n in range(2)]
    for plane in (np.zeros((2, 2)), np.array([[-1e6, 3.0], [1e6, 4.0]])):
        page = make(documents, summary(), plane)
        svg = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
        for circle in svg:
            assert 0 <= float(circle.get("cx")) <= cluster_report.WIDTH
            assert 0 <= float(circle.get("cy")) <= cluster_report.HEIGHT
        assert "Rand" not in page and "Silhouettes by" not in page


def test_many_points_are_a_sample(monkeypatch):
    monkeypatch.setattr(cluster_report, "MOST_POINTS", 10)
    page = make([Document(str(n), "x", None) for n in range(30)], summary())
    assert page.count("<circle") == 10 and "10 of 30 documents" in page


def test_neighbouring_clusters_differ_in_colour():
    colours = [cluster_report._colour(index) for index in range(30)]
    assert len(set(colours)) == 30
