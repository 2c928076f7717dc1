"""The flags of fine-tuning, and of evaluating and predicting with what was fine-tuned."""

from bert_jax.flag_definer import FlagDefiner


def define(define_flag: FlagDefiner) -> None:
    """Defines them."""
    string, comma_list, boolean = define_flag.string, define_flag.comma_list, define_flag.boolean
    enum, integer, number = define_flag.enum, define_flag.integer, define_flag.number

    string(
        "task_name",
        None,
        "What the task is. Data sets: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, ax, xnli, squad, swag, "
        "conll2003; glue is all tasks of GLUE that --data_dir has, one after the other. Data of your own: "
        "classification, multi_label (any number of labels), regression, multiple_choice, tagging, squad. evaluate, "
        "predict: default what the model was trained for.",
    )
    string(
        "data_dir",
        None,
        "Folder with the files of a data set under their usual names (such as train.tsv, dev.tsv, test.tsv), or tfds "
        "or tfds:NAME[/CONFIG][:VERSION] for TensorFlow Datasets.",
    )
    comma_list(
        "train_file",
        None,
        "Examples to train on, instead of those of --data_dir. Texts: TSV, CSV or JSON lines, several files, a glob or "
        "a folder. Others are one file: SQuAD's JSON, SWAG's CSV, CoNLL's columns, or JSON lines.",
    )
    comma_list("eval_file", None, "Labelled examples to evaluate on, in the form of --train_file.")
    comma_list("predict_file", None, "Examples to predict, in the form of --train_file; labels are not looked at.")
    string(
        "text_pair_field", None, "Name of the column or field with the second text, or its number; see --text_field."
    )
    string(
        "label_field",
        None,
        "Name of the column or field with the label, or its number; default label. cluster: the known class of a "
        "document; default none.",
    )
    string(
        "id_field",
        None,
        "Name of the column or field by which predictions name an example, or its number; default the row's number "
        "from 0.",
    )
    comma_list(
        "labels",
        None,
        "Names of the labels in the order of the model's outputs; default those of the model or of the training data. "
        "Names a model's outputs where it calls them LABEL_0, LABEL_1.",
    )
    string("positive_label", None, "Label that precision, recall and F1 are about, of two; default the second.")
    string("train_language", "en", "xnli: language of the training file.")
    string("language", None, "xnli: language to evaluate and predict; default all there are, with metrics of each.")
    boolean(
        "version_2_with_negative",
        None,
        "squad: a question may have no answer (SQuAD 2.0); default true for files with v2 in their name.",
    )
    number(
        "null_score_diff_threshold",
        0.0,
        "squad 2.0: a question has no answer if the score of that is more than this above the best answer's. Metrics "
        "tell the best value for the evaluated examples (best_f1_thresh).",
    )
    integer("doc_stride", 128, "squad: a long context is read in windows that begin so many tokens apart.", 1)
    integer("max_query_length", 64, "squad: most tokens of a question; longer ones are cut.", 1)
    integer("n_best_size", 20, "squad: how many candidates for each answer are written.", 1)
    integer("max_answer_length", 30, "squad: most tokens of an answer.", 1)
    boolean(
        "document_context",
        False,
        "tagging: a sequence holds as many sentences of a document as --max_seq_length has room for, so that each "
        "sees its neighbours; False: a sequence is a sentence.",
    )
    boolean("strict_entities", False, "tagging: entities are scored by strict IOB2 instead of the rules of conlleval.")
    integer(
        "num_runs",
        1,
        "finetune: so many runs with the seeds --seed, --seed + 1, ...; the best one is kept, all are in a table.",
        1,
        1000,
    )
    boolean(
        "grid_search",
        False,
        "finetune: a run for each setting of the paper's grid: --train_batch_size 16, 32; --learning_rate 5e-5, 3e-5, "
        "2e-5; --num_train_epochs 2, 3, 4. Those that are given are not searched over.",
    )
    number(
        "layer_lr_decay",
        1.0,
        "finetune: each layer learns at this share of the rate of the layer above it, such as 0.9.",
        0.01,
        1.0,
    )
    integer("reinit_layers", 0, "finetune: so many layers at the top, and the pooler, begin with random weights.", 0)
    boolean("allow_new_pooler", False, "finetune: a pooler that --init_checkpoint lacks begins with random weights.")
    boolean("freeze_encoder", False, "finetune: the encoder stays as it is, and only what follows it learns.")
    enum(
        "head_features",
        "last",
        ["last", "embeddings", "second_to_last", "weighted_last_4", "concat_last_4", "weighted_all"],
        "finetune for tagging and squad: the layers that the output layer reads (table 7 of the paper).",
    )
    comma_list(
        "head_lstm",
        [],
        "finetune: sizes of bidirectional LSTMs between encoder and output layer, such as 768,768 for two.",
    )
