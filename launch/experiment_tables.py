"""The experiments of the paper's tables 5 to 8 and figure 5 as data: models, ways to fine-tune them, and cells.

What is the same in all experiments is in launch/recipes; here stands what differs, and what differs between the scales:
the paper's own, and a twin of it for two cores.
"""

from typing import NamedTuple


class Setup(NamedTuple):
    """How a task is learned.

    Attributes:
        recipe: of launch/recipes, with the flags that come after it.
        folders: names that the folder of the task has below --data_dir, that of the made-up task first.
        metric: the number of eval_results.json, which is multiplied by `factor`.
    """

    title: str
    recipe: str
    flags: tuple[str, ...]
    folders: tuple[str, ...]
    metric: str = "accuracy"
    factor: float = 100.0


class Cell(NamedTuple):
    """A number of a table.

    Attributes:
        model: of MODELS.
        setup: of SETUPS; None for the perplexity of the model itself on held-out text.
        paper: the paper's number; None where it is not known.
        head: of HEADS.
        fifths: how much of the pretraining the model has had.
    """

    model: str
    setup: str | None
    paper: float | None
    head: str = ""
    fifths: int = 5


class Table(NamedTuple):
    """A table of the paper.

    Attributes:
        name: of the files with the results.
        columns: titles of the cells of a row.
        rows: their titles and cells.
        about: what the paper says of it, and what differs here.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    about: str


class Scale(NamedTuple):
    """How large everything is.

    Attributes:
        sizes: size of a model -> the flag for it.
        hidden: width of the LSTMs.
        phases: of pretraining: recipe, further flags, and the last step.
        checkpoints: flags for models of which checkpoints along the way are needed.
        vocab_size: of the vocabulary that is trained where none is given.
        finetuning: setup -> flags, in all setups those of "".
        num_runs: of each fine-tuning.
        input_file: where none is given; None where one must be.
    """

    sizes: dict[str, str]
    hidden: int
    phases: tuple[tuple[str, tuple[str, ...], int], ...]
    checkpoints: tuple[str, ...]
    vocab_size: int
    finetuning: dict[str, tuple[str, ...]]
    num_runs: int
    input_file: str | None


_NO_NSP = ("--next_sentence_prediction=false",)

# What is pretrained: the size, and flags. "bert" is BERT base as in the rest of the paper.
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bert": ("12-768-12", ()),
    "no_nsp": ("12-768-12", _NO_NSP),
    "ltr_no_nsp": ("12-768-12", (*_NO_NSP, "--attention=left_to_right")),
    **{size: (size, ()) for size in ("3-768-12", "6-768-3", "6-768-12", "12-1024-16", "24-1024-16")},
    **{
        "mask" + "_".join(f"{share:.0%}".rstrip("%") for share in split): (
            "12-768-12",
            (f"--masking_split={','.join(map(str, split))}",),
        )
        for split in ((1.0, 0.0, 0.0), (0.8, 0.0, 0.2), (0.8, 0.2, 0.0), (0.0, 0.2, 0.8), (0.0, 0.0, 1.0))
    },
}
ALONG_THE_WAY = ("bert", "ltr_no_nsp")

_GLUE = {name: ("glue", (f"--task_name={name}",)) for name in ("mnli", "qnli", "mrpc", "sst2")}
_CONLL = ("conll2003", "CoNLL-2003", "ner/conll2003")
SETUPS: dict[str, Setup] = {
    "mnli": Setup("MNLI-m accuracy", *_GLUE["mnli"], ("MNLI", "glue/MNLI")),
    "qnli": Setup("QNLI accuracy", *_GLUE["qnli"], ("QNLI", "glue/QNLI")),
    "mrpc": Setup("MRPC accuracy", *_GLUE["mrpc"], ("MRPC", "glue/MRPC")),
    "sst2": Setup("SST-2 accuracy", *_GLUE["sst2"], ("SST-2", "glue/SST-2")),
    "squad": Setup("SQuAD 1.1 F1", "squad1", (), ("squad", "SQuAD"), "f1", 1.0),
    "ner": Setup("CoNLL-2003 F1, fine-tuned", "conll2003", (), _CONLL, "f1"),
    "ner_features": Setup("CoNLL-2003 F1, feature-based", "conll2003_features", (), _CONLL, "f1"),
}

# What is put between encoder and output layer in place of the recipe's. The paper does not say how wide its BiLSTM of
# table 5 is: as BERT here, in one layer.
HEADS: dict[str, tuple[str, ...]] = {
    "": (),
    "bilstm": ("--head_lstm={hidden}",),
    **{
        name: (f"--head_features={name}",)
        for name in ("embeddings", "second_to_last", "last", "weighted_last_4", "weighted_all")
    },
}

_TABLE_5 = ("mnli", "qnli", "mrpc", "sst2", "squad")
_TABLE_6 = (None, "mnli", "mrpc", "sst2")
_TABLE_8 = ("mnli", "ner", "ner_features")


def _row(model: str, setups: tuple[str | None, ...], paper: tuple[float, ...], head: str = "") -> tuple[Cell, ...]:
    return tuple(Cell(model, setup, number, head) for setup, number in zip(setups, paper, strict=True))


def _titles(setups: tuple[str | None, ...]) -> tuple[str, ...]:
    return tuple(SETUPS[setup].title if setup else "perplexity" for setup in setups)


_LTR_HERE = (
    "LTR here predicts the masked words from what stands left of them; that of the paper is a language model of all "
    "words. A left-to-right model is read at the last token."
)

TABLES: dict[str, Table] = {
    "5": Table(
        "table5",
        "Table 5: pretraining tasks",
        _titles(_TABLE_5),
        (
            ("BERT", _row("bert", _TABLE_5, (84.4, 88.4, 86.7, 92.7, 88.5))),
            ("no NSP", _row("no_nsp", _TABLE_5, (83.9, 84.9, 86.5, 92.6, 87.9))),
            ("LTR & no NSP", _row("ltr_no_nsp", _TABLE_5, (82.1, 84.3, 77.5, 92.1, 77.8))),
            ("LTR & no NSP + BiLSTM", _row("ltr_no_nsp", _TABLE_5, (82.1, 84.1, 75.7, 91.6, 84.9), "bilstm")),
        ),
        f"Dev sets, BERT base. {_LTR_HERE}",
    ),
    "6": Table(
        "table6",
        "Table 6: model sizes (layers, hidden size, heads)",
        _titles(_TABLE_6),
        (
            ("3, 768, 12", _row("3-768-12", _TABLE_6, (5.84, 77.9, 79.8, 88.4))),
            ("6, 768, 3", _row("6-768-3", _TABLE_6, (5.24, 80.6, 82.2, 90.7))),
            ("6, 768, 12", _row("6-768-12", _TABLE_6, (4.68, 81.9, 84.8, 91.3))),
            ("12, 768, 12", _row("bert", _TABLE_6, (3.99, 84.4, 86.7, 92.9))),
            ("12, 1024, 16", _row("12-1024-16", _TABLE_6, (3.54, 85.7, 86.9, 93.3))),
            ("24, 1024, 16", _row("24-1024-16", _TABLE_6, (3.23, 86.6, 87.8, 93.7))),
        ),
        "Dev sets, mean of 5 runs in the paper; the perplexity is that of masked words of held-out text.",
    ),
    "7": Table(
        "table7",
        "Table 7: fine-tuning and features for named entities",
        ("CoNLL-2003 dev F1",),
        (
            ("fine-tuned", (Cell("bert", "ner", 96.4),)),
            ("features: embeddings", (Cell("bert", "ner_features", 91.0, "embeddings"),)),
            ("features: second-to-last hidden", (Cell("bert", "ner_features", 95.6, "second_to_last"),)),
            ("features: last hidden", (Cell("bert", "ner_features", 94.9, "last"),)),
            ("features: weighted sum of last four", (Cell("bert", "ner_features", 95.9, "weighted_last_4"),)),
            ("features: concatenated last four", (Cell("bert", "ner_features", 96.1),)),
            ("features: weighted sum of all layers", (Cell("bert", "ner_features", 95.5, "weighted_all"),)),
        ),
        "BERT base, cased, mean of 5 runs in the paper. Features of a frozen encoder go into two bidirectional LSTMs.",
    ),
    "8": Table(
        "table8",
        "Table 8: masking (shares of [MASK], same word, random word)",
        _titles(_TABLE_8),
        (
            ("80%, 10%, 10%", _row("bert", _TABLE_8, (84.2, 95.4, 94.9))),
            ("100%, 0%, 0%", _row("mask100_0_0", _TABLE_8, (84.3, 94.9, 94.0))),
            ("80%, 0%, 20%", _row("mask80_0_20", _TABLE_8, (84.1, 95.2, 94.6))),
            ("80%, 20%, 0%", _row("mask80_20_0", _TABLE_8, (84.4, 95.2, 94.7))),
            ("0%, 20%, 80%", _row("mask0_20_80", _TABLE_8, (83.7, 94.8, 94.6))),
            ("0%, 0%, 100%", _row("mask0_0_100", _TABLE_8, (83.6, 94.9, 94.6))),
        ),
        "Dev sets, BERT base; features are the concatenated last four layers.",
    ),
    "figure 5": Table(
        "figure5",
        "Figure 5: pretraining steps",
        ("BERT: MNLI-m accuracy", "LTR & no NSP: MNLI-m accuracy"),
        tuple(
            (
                f"{fifths}/5 of the steps",
                (Cell("bert", "mnli", None, "", fifths), Cell("ltr_no_nsp", "mnli", None, "", fifths)),
            )
            for fifths in range(1, 6)
        ),
        "Dev set, BERT base, 1,000,000 steps. The paper shows a curve, without numbers: its text says that 1,000,000 "
        f"steps are almost 1.0 points better than 500,000. {_LTR_HERE}",
    ),
}

_PAPER_SIZES = ("3-768-12", "6-768-3", "6-768-12", "12-1024-16")
# A layer stands for three, 128 units for 768, a head for three or four.
_TWINS = {
    "3-768-12": "1-128-4",
    "6-768-3": "2-128-1",
    "6-768-12": "2-128-4",
    "12-768-12": "4-128-4",
    "12-1024-16": "4-192-6",
    "24-1024-16": "8-192-6",
}

SCALES: dict[str, Scale] = {
    "paper": Scale(
        sizes={
            **{size: f"--bert_config_file={{configs}}/{size}.json" for size in _PAPER_SIZES},
            "12-768-12": "--model=base",
            "24-1024-16": "--model=large",
        },
        hidden=768,
        phases=(("bert_base_phase1", (), 900_000), ("bert_base_phase2", (), 1_000_000)),
        checkpoints=("--save_checkpoints_steps=25000", "--keep_checkpoints=36"),
        vocab_size=30_000,
        finetuning={},
        num_runs=5,
        input_file=None,
    ),
    "cpu": Scale(
        sizes={size: f"--bert_config_file={{configs}}/{twin}.json" for size, twin in _TWINS.items()},
        hidden=128,
        phases=(
            (
                "bert_base_phase1",
                (
                    "--max_seq_length=64",
                    "--max_predictions_per_seq=10",
                    "--train_batch_size=32",
                    "--num_train_steps=3000",
                    "--num_warmup_steps=300",
                    "--learning_rate=1e-3",
                    "--precision=f32",
                    # Text of this size is not overfitted in so few steps.
                    "--hidden_dropout_prob=0",
                    "--attention_probs_dropout_prob=0",
                ),
                3000,
            ),
        ),
        checkpoints=("--save_checkpoints_steps=600", "--keep_checkpoints=5"),
        vocab_size=4096,
        finetuning={
            "": ("--max_seq_length=64", "--train_batch_size=32", "--num_train_steps=500", "--learning_rate=5e-4"),
            "squad": ("--doc_stride=16", "--max_query_length=16"),
            "ner_features": ("--learning_rate=2e-3", "--head_lstm={hidden},{hidden}"),
        },
        num_runs=1,
        input_file="builtin",
    ),
}
