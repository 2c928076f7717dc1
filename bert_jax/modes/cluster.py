"""--mode=cluster: documents -> clusters, with their words, representatives and a picture."""

import json
import os
from typing import Any

from bert_jax import cluster_report, clustering, devices, features, partitioning, processes
from bert_jax.loading import LoadedBert, load_from_flags
from bert_jax.modes.extract import flag_names, parse_layers
from bert_jax.rate_display import RateDisplay
from input_pipeline import files, text_lines
from input_pipeline.documents import Document, read_documents
from input_pipeline.errors import UserError

PIECE_TOKENS = 128  # of which long documents are made where --max_seq_length does not say otherwise
OUTPUTS = ("clusters.jsonl", "clusters.html", "clusters.json")


def run(flags: Any) -> None:
    """Clusters the documents of --input_file, and writes OUTPUTS to --output_dir.

    Raises:
        UserError: a flag or a file that cannot be used, or fewer documents than clusters.
    """
    layers = parse_layers(flags.layers)
    if flags.pooling == "none":
        raise UserError("--pooling=none makes vectors of tokens, but clusters are of documents: use mean, max or cls")
    if not flags.input_file:
        raise UserError("--mode=cluster needs --input_file: JSON lines, or files of text (see --documents)")
    clustering.check_installed()
    check_output_dir(flags)
    notes: list[str] = []
    paths = text_lines.input_paths(flags.input_file)
    documents = read_documents(
        paths,
        documents=flags.documents,
        text_field=flags.text_field,
        label_field=flags.label_field,
        message=notes.append,
    )
    with_text = [document for document in documents if document.text.strip()]
    check_documents(flags, documents, with_text, notes)
    devices.start(flags)
    devices.check_same_flags(flags.flag_values_dict())
    for note in notes:
        processes.say(f"warning: {note}")
    mesh = partitioning.make_mesh(flags.mesh, dcn_text=flags.dcn_mesh)
    bert = load_from_flags(flags, processes.say)
    with flag_names():
        limit = features.length_limit(
            bert, flags.max_seq_length or min(PIECE_TOKENS, bert.config.max_position_embeddings)
        )
    vectors = vectors_of(flags, bert, layers, with_text, mesh, limit)
    processes.from_first(lambda: finish(flags, documents, with_text, vectors, limit, notes))


def check_output_dir(flags: Any) -> None:
    """Raises UserError when --output_dir is missing, is no folder, or holds something and there is no --overwrite."""
    path = flags.output_dir
    if not path:
        raise UserError(f"--mode=cluster needs --output_dir, a folder for {', '.join(OUTPUTS)}")
    target = files.reach(path, "--output_dir")
    with files.user_errors(target, "--output_dir"):
        if target.exists() and any(target.iterdir()) and not flags.overwrite:
            raise UserError(f"--output_dir={path} is not empty: give --overwrite, or another folder")


def check_documents(flags: Any, documents: list[Document], with_text: list[Document], notes: list[str]) -> None:
    """Notes documents without text. Raises: UserError when too few have one."""
    if not documents or not with_text:
        raise UserError(f"--input_file={','.join(flags.input_file)}: there is no document with a text")
    if len(with_text) < len(documents):
        first = next(document.id for document in documents if not document.text.strip())
        notes.append(
            f"{len(documents) - len(with_text):,} of {len(documents):,} documents have no text and belong to no "
            f"cluster, the first is {first}"
        )
    if len(with_text) < 2:
        raise UserError(
            f"--input_file={','.join(flags.input_file)} holds one document only; for files of text "
            "--documents=line or paragraph makes more of them"
        )
    if flags.num_clusters and flags.num_clusters > len(with_text):
        raise UserError(
            f"--num_clusters={flags.num_clusters} is more than the {len(with_text):,} documents with a text"
        )


def vectors_of(flags: Any, bert: LoadedBert, layers: list[int], documents: list[Document], mesh: Any, limit: int):
    """The vectors of the documents, f32 [n, dim], of pieces of at most `limit` tokens."""
    features.check_tokenizer(bert)
    with flag_names():
        spec = features.feature_spec(bert, layers, flags.layer_combination, flags.pooling)
    with RateDisplay("documents", len(documents), shown=processes.is_first()) as display:
        vectors = clustering.document_vectors(
            bert,
            spec,
            [document.text for document in documents],
            mesh=mesh,
            limit=limit,
            batch_size=flags.eval_batch_size,
            advance=display.advance,
        )
        processes.say(f"{display.summary()}; clustering them")
    if not vectors.size or not (abs(vectors) < float("inf")).all():
        raise UserError("the vectors of the documents hold NaN or infinity: the weights are damaged or overflow")
    return vectors


def finish(
    flags: Any, documents: list[Document], with_text: list[Document], vectors, limit: int, notes: list[str]
) -> None:
    """Clusters, writes and tells."""
    points = clustering.centred_and_normal(vectors)
    clusters = clustering.cluster(points, flags.num_clusters, flags.seed)
    number = int(clusters.assignment.max()) + 1
    if flags.num_clusters and number < flags.num_clusters:
        notes.append(f"only {number} clusters: no more documents differ from each other")
        processes.say(f"warning: {notes[-1]}")
    plane, method = clustering.positions(points, flags.seed)
    agreement = clustering.agreement([document.label for document in with_text], clusters.assignment)
    names = ("init_checkpoint", "input_file", "documents", "text_field", "label_field", "layers")
    names += ("layer_combination", "pooling", "max_seq_length", "precision")
    summary = {
        "documents": len(with_text),
        "documents_without_text": len(documents) - len(with_text),
        "num_clusters": number,
        "silhouette": clusters.silhouette,
        **({"silhouettes": {str(key): value for key, value in clusters.tried.items()}} if clusters.tried else {}),
        **({"agreement": agreement} if agreement else {}),
        "seed": flags.seed,
        "positions": method,
        "settings": {name: getattr(flags, name) for name in names} | {"max_seq_length": limit},
        "notes": notes,
        "clusters": clustering.describe(with_text, clusters),
    }
    numbers = iter(range(len(with_text)))
    rows = [next(numbers) if document.text.strip() else None for document in documents]
    title = os.path.basename(os.path.normpath(flags.output_dir))
    contents = {
        "clusters.jsonl": "".join(clustering.lines_of(documents, rows, clusters, plane)),
        "clusters.html": cluster_report.page(title, summary, with_text, clusters.assignment, plane, notes),
        "clusters.json": json.dumps(summary, indent=2, allow_nan=False) + "\n",
    }
    write(flags.output_dir, {name: text.encode("utf-8", "replace") for name, text in contents.items()})
    tell(flags, summary)


def write(output_dir: str, contents: dict[str, bytes]) -> None:
    """Writes all files or none into a new or empty folder; into any other one file after the other."""
    target = files.reach(output_dir, "--output_dir")
    with files.user_errors(target, "--output_dir"):
        if target.exists() and any(target.iterdir()):
            for name, data in contents.items():
                files.write_bytes_atomic(target / name, data)
            return
    with files.filling_folder(output_dir, "--output_dir", last="clusters.json") as folder:
        for name, data in contents.items():
            (folder / name).write_bytes(data)


def tell(flags: Any, summary: dict[str, Any]) -> None:
    """The short table at the end, on standard output."""
    if tried := summary.get("silhouettes"):
        print("silhouette by number of clusters: " + ", ".join(f"{key}: {value:.3f}" for key, value in tried.items()))
    print(f"{'cluster':>7}  {'size':>7}  words")
    for entry in summary["clusters"]:
        print(f"{entry['cluster']:>7}  {entry['size']:>7,}  {', '.join(entry['words'][:8])}")
    scores = [f"silhouette {summary['silhouette']:.3f}"]
    if agreement := summary.get("agreement"):
        scores.append(f"adjusted Rand index {agreement['adjusted_rand_index']:.3f}")
        scores.append(f"normalised mutual information {agreement['normalized_mutual_information']:.3f}")
    print(f"{'; '.join(scores)}; {', '.join(OUTPUTS)} are in {flags.output_dir}", flush=True)
