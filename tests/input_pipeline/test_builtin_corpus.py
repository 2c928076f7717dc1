import re
import subprocess
import sys

from input_pipeline import builtin_corpus


def test_size_and_content():
    documents = builtin_corpus.documents()
    assert 500 < len(documents) < 1000
    assert 1.5e6 < sum(map(len, documents)) < 4e6
    assert all(document == document.strip() and document for document in documents)
    text = "\n".join(documents)
    assert "JSON (JavaScript Object Notation)" in text, "the docstring of a module"
    assert "Serialize ``obj`` to a JSON formatted ``str``." in text, "the docstring of a function"
    assert re.search(r'The "?assert"? statement', text), "a help topic"
    assert "this_is_no_documentation" not in text


def test_order_and_checksum_are_the_same_in_every_process():
    """And the modules are parsed, not imported: `this` prints a poem when it is."""
    code = "import sys; from input_pipeline import builtin_corpus as b; print(b.checksum(), 'this' in sys.modules)"
    seeds = ("1", "2")
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in seeds
    }
    assert outputs == {f"{builtin_corpus.checksum()} False\n"}
    assert len(builtin_corpus.checksum()) == 64
