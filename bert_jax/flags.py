"""Every flag of the command line, by what it is about. Names are Google's where Google has one."""

from absl import flags

MODES = {
    "pretrain": "masked LM and next-sentence prediction from text or a prepared store",
    "prepare": "text -> token store (and a vocabulary, where none is given)",
    "tokenize": "text -> JSON lines of tokens and ids",
    "describe": "parameters by part, FLOPs and memory of a model",
    "fill_mask": "the most probable words for each [MASK] of a text; whether one sentence follows another",
    "extract": "a file of lines -> vectors of lines or tokens",
    "finetune": "a task: trains, evaluates, writes predictions (--task_name)",
    "evaluate": "metrics of a fine-tuned model on labelled data",
    "predict": "answers of a fine-tuned model to unlabelled data",
    "cluster": "documents -> clusters, with their words, representatives and a picture",
    "export": "any checkpoint -> Hugging Face, Google's TF1 or StableHLO",
}

# Modes that run steps on a device.
COMPUTING_MODES = ("pretrain", "fill_mask", "extract", "finetune", "evaluate", "predict", "cluster", "export")


def define(values: flags.FlagValues) -> None:
    """Defines all flags on `values`; keyed to this module, so that --help lists exactly these."""
    module = __name__

    def string(name, default, text):
        flags.DEFINE_string(name, default, text, values, module_name=module)

    def comma_list(name, default, text):
        flags.DEFINE_list(name, default, text, values, module_name=module)

    def boolean(name, default, text):
        flags.DEFINE_boolean(name, default, text, values, module_name=module)

    def enum(name, default, choices, text):
        flags.DEFINE_enum(name, default, choices, text, values, module_name=module)

    def integer(name, default, text, low=None, high=10**9):
        flags.DEFINE_integer(name, default, text, low, high, values, module_name=module)

    def number(name, default, text, low=None, high=None):
        flags.DEFINE_float(name, default, text, low, high, values, module_name=module)

    enum("mode", None, list(MODES), "What to do: " + "; ".join(f"{mode}: {text}" for mode, text in MODES.items()) + ".")

    # Input and output.
    comma_list(
        "input_file",
        None,
        "Comma list of files, globs, folders, token stores, masked TFRecords, tfds:NAME[/CONFIG][:SPLIT] or builtin "
        "(the documentation that every CPython carries; the default of pretrain). Several entries are several "
        "corpora (see --sampling_exponent).",
    )
    comma_list("eval_input_file", None, "Held-out text in the same forms; else a share of the documents is held out.")
    number(
        "eval_fraction",
        None,
        "pretrain: share of the documents held out, chosen by a hash of the document; default 0.02. finetune: share of "
        "the examples of --train_file held out where there is no --eval_file; default none.",
        0.0,
        1.0,
    )
    string(
        "output_dir",
        None,
        "Folder for everything that is written; default runs/pretrain, or runs/TASK for finetune, and for evaluate and "
        "predict the run's own.",
    )
    string(
        "output_file",
        None,
        "tokenize, fill_mask: file for JSON lines; default standard output. extract: file for the vectors, whose "
        "ending (.npy, .npz, .jsonl, .tfrecord) says the format.",
    )
    boolean("overwrite", False, "export, extract, fill_mask, cluster: write over what an earlier run left.")
    string("text_field", "text", "Field that holds the text in JSON lines and TFDS data sets.")
    enum(
        "sentence_splitting",
        "auto",
        ["auto", "always", "never"],
        "Split lines into sentences; auto: not for text files, which have a sentence a line.",
    )
    integer("num_workers", 0, "Processes that prepare text; 0 is one for each core.", 0)
    string(
        "runner", None, "prepare: Apache Beam runner (DirectRunner, DataflowRunner, ...) instead of local processes."
    )
    comma_list("beam_options", [], "prepare: options passed to the Beam runner, such as --project=NAME.")

    # Vocabulary.
    string("vocab_file", None, "vocab.txt (WordPiece) or a SentencePiece model; a store carries its own.")
    boolean("do_lower_case", None, "Lower-case and strip accents; default: as the vocabulary says, else true.")
    integer("vocab_size", None, "Size of the vocabulary to train where no --vocab_file is given.", 1)
    enum("vocab_kind", "wordpiece", ["wordpiece", "sentencepiece"], "Kind of vocabulary to train.")

    # Model.
    enum("model", None, ["tiny", "mini", "small", "medium", "base", "large"], "Named size of the model.")
    string("bert_config_file", None, "bert_config.json (Google's or Hugging Face's keys) instead of --model.")
    string(
        "init_checkpoint",
        None,
        "Weights to use or to start from: the output folder of a run, a Hugging Face folder or file, the prefix of a "
        "TF1 checkpoint (bert_model.ckpt), or hf://ORG/NAME. Configuration, vocabulary, casing and labels beside them "
        "are taken unless flags say otherwise.",
    )
    boolean("allow_pickled_weights", False, "Read pytorch_model.bin, with PyTorch's loader for weights only.")
    integer("max_position_embeddings", None, "Positions of the model instead of what its configuration says.", 1)
    boolean(
        "extend_positions", False, "Repeat the position table of --init_checkpoint where the model has more positions."
    )
    string("hidden_act", None, "Activation: gelu (erf form), gelu_new or gelu_tanh (tanh form), relu, ...")
    number("hidden_dropout_prob", None, "Dropout of embeddings and sub-layers; default of the model 0.1.", 0.0, 1.0)
    number("attention_probs_dropout_prob", None, "Dropout of attention; default of the model 0.1.", 0.0, 1.0)
    enum(
        "attention", None, ["bidirectional", "left_to_right"], "left_to_right is the LTR model of the paper's ablation."
    )

    # Use of a model.
    flags.DEFINE_multi_string(
        "text",
        None,
        "fill_mask: a text with [MASK], or a pair, A ||| B; may be repeated. Words without a flag are texts too.",
        values,
        module_name=module,
    )
    enum("output_format", "table", ["table", "jsonl"], "fill_mask: form of what goes to standard output.")
    integer("top_k", 5, "fill_mask: how many words for each [MASK].", 1)
    comma_list("layers", ["-1"], "extract: layers, 0 the embeddings and -1 the top.")
    enum("layer_combination", "concat", ["concat", "sum", "list"], "extract: what becomes of several layers.")
    enum(
        "pooling",
        "mean",
        ["mean", "max", "cls", "pooled", "none"],
        "extract, cluster: one vector for a line: mean or max of its tokens, that of [CLS], or the pooler's; none: a "
        "vector for each token.",
    )
    integer("num_clusters", None, "cluster: how many; default the number with the best silhouette, up to 20.", 2)
    enum(
        "documents",
        "auto",
        ["auto", "file", "line", "paragraph"],
        "cluster: what a document of a text file is: the file, a line, or what stands between blank lines; auto: the "
        "file, or the line where there is only one file.",
    )
    enum("format", None, ["huggingface", "tf1", "stablehlo"], "export: what to write to --output_dir.")
    comma_list("platforms", ["cpu", "cuda", "tpu"], "export to StableHLO: platforms that the program is lowered for.")

    # Tasks.
    string(
        "task_name",
        None,
        "finetune: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, ax, xnli, glue (all that --data_dir has), "
        "squad, swag, conll2003; for data of one's own classification, multi_label, regression, multiple_choice, "
        "tagging, squad.",
    )
    string("data_dir", None, "Folder with the original files of the task, or tfds, or tfds:NAME[/CONFIG].")
    comma_list("train_file", None, "Examples to train on: TSV, CSV, JSON lines; SQuAD's JSON; CoNLL's columns.")
    comma_list("eval_file", None, "Labelled examples to evaluate on, in the same form.")
    comma_list("predict_file", None, "Examples to predict, in the same form; labels are not looked at.")
    string("label_field", None, "Name, or number from 1, of the column or field with the label; default label.")
    string("text_pair_field", None, "Name, or number from 1, of the column or field with the second text.")
    string("id_field", None, "Name, or number from 1, of the column or field that names an example in predictions.")
    comma_list("labels", None, "Names of the labels, in the order of the outputs; default those of the training data.")
    string("positive_label", None, "Label that precision, recall and F1 of two are about; default the second.")
    string("train_language", "en", "xnli: language of the training file.")
    string("language", None, "xnli: language of dev and test; default all, each on its own.")
    boolean("version_2_with_negative", None, "squad: some questions have no answer; default as the file says.")
    number("null_score_diff_threshold", 0.0, "squad: above it the answer is none; see null_odds.json.")
    integer("doc_stride", 128, "squad: tokens from one window of a long context to the next.", 1)
    integer("max_query_length", 64, "squad: tokens of a question.", 1)
    integer("n_best_size", 20, "squad: answers in nbest_predictions.json.", 1)
    integer("max_answer_length", 30, "squad: tokens of an answer.", 1)
    boolean("document_context", False, "tagging: sentences see their neighbours, up to --max_seq_length tokens.")
    boolean("strict_entities", False, "tagging: strict IOB2 instead of conlleval's rules.")
    integer("num_runs", 1, "finetune: runs with seeds --seed, --seed + 1, ...; mean, deviation and best.", 1, 1000)
    boolean(
        "grid_search",
        False,
        "finetune: the paper's grid (batch 16, 32; learning rate 5e-5, 3e-5, 2e-5; epochs 2, 3, 4); what a flag gives "
        "is not searched.",
    )
    number("layer_lr_decay", 1.0, "finetune: each layer learns at so much of the rate of the layer above.", 0.01, 1.0)
    integer("reinit_layers", 0, "finetune: so many layers at the top, and the pooler, begin anew.", 0)
    boolean("allow_new_pooler", False, "finetune: weights without a pooler get a new one.")
    enum(
        "head_features",
        "last",
        ["last", "embeddings", "second_to_last", "weighted_last_4", "concat_last_4", "weighted_all"],
        "tagging, squad: hidden states that the output layer reads.",
    )
    comma_list("head_lstm", [], "finetune: sizes of bidirectional LSTMs between encoder and output layer.")
    boolean("freeze_encoder", False, "finetune: only what follows the encoder learns.")

    # Sentence pairs and masks.
    integer(
        "max_seq_length",
        None,
        "Tokens in a sequence, [CLS] and [SEP] included; default 128, but all positions for extract and fill_mask.",
        1,
    )
    integer("max_predictions_per_seq", None, "Most masked positions in a sequence; default the probability's share.", 1)
    number("masked_lm_prob", 0.15, "Share of the tokens to predict.", 0.0, 1.0)
    comma_list("masking_split", ["0.8", "0.1", "0.1"], "Shares of predicted tokens shown as [MASK], unchanged, random.")
    boolean("whole_word_masking", False, "Predict all pieces of a word or none.")
    number("short_seq_prob", 0.1, "Share of documents that aim at a shorter, random length.", 0.0, 1.0)
    boolean("next_sentence_prediction", True, "False trains on single segments without the NSP loss.")
    number(
        "sampling_exponent", 1.0, "Several corpora: sampled by size to this power (0.7 for many languages).", 0.0, 1.0
    )
    boolean("shuffle", True, "False reads the examples in file order.")

    # Training.
    integer("train_batch_size", None, "Examples in an update, over all devices.", 1)
    integer(
        "eval_batch_size",
        None,
        "Examples in a step without training, over all devices; default that of training, or what suits the devices.",
        1,
    )
    number("learning_rate", None, "Peak learning rate.", 0.0, 1e3)
    integer("num_train_steps", None, "Updates; or give --num_train_epochs.", 1)
    number("num_train_epochs", None, "Passes over the data, instead of --num_train_steps.", 0.0, 1e6)
    integer("num_warmup_steps", None, "Updates of linear warm-up; default 10,000 but at most 10% of the steps.", 0)
    number("warmup_proportion", None, "Warm-up as a share of the steps, instead of --num_warmup_steps.", 0.0, 1.0)
    enum(
        "optimizer",
        None,
        ["bert_adam", "adamw", "lamb"],
        "bert_adam is Google's Adam, which has no bias correction: the default of pretrain. adamw has it: the default "
        "of finetune, where few steps without it are unstable.",
    )
    number("weight_decay", 0.01, "Decoupled decay of kernels and embeddings.", 0.0, 1e3)
    number("clip_norm", 1.0, "Largest global norm of the gradient; 0 does not clip.", 0.0)
    integer("gradient_accumulation_steps", 1, "Parts in which a batch is computed one after the other.", 1)
    integer("seed", 12345, "Seed of parameters, order, pairs, masks and dropout.", 0, 2**31 - 1)
    enum("precision", "f32", ["f32", "bf16"], "Dtype of the computation; parameters and losses are f32.")
    enum(
        "matmul_precision",
        None,
        ["default", "high", "highest"],
        "Precision of f32 matrix products on TPU and GPU; default: highest with f32, the device's default with bf16.",
    )
    string("mesh", "", "Sizes of the mesh axes, such as data=4,tensor=2; axes: data, fsdp, tensor. Default all data.")
    enum("remat", "none", ["none", "dots", "full"], "What is computed again in the backward pass to save memory.")
    boolean("scan_layers", False, "One compiled layer, scanned: quicker to compile, slower to run.")

    # Checkpoints, logs, evaluation.
    integer("save_checkpoints_steps", None, "Updates between checkpoints; the last step is always saved.", 1)
    integer("keep_checkpoints", 3, "How many checkpoints stay.", 1)
    string("restore_from", None, "Another run folder to continue: its parameters, optimizer state and step.")
    integer("log_every_steps", None, "Updates between logged steps; default a hundredth of all, at most 100.", 1)
    integer("eval_every_steps", None, "Updates between evaluations; default only at the end.", 1)
    boolean("evaluate_at_end", True, "Evaluate on the held-out text when training is done.")
    integer("max_eval_steps", None, "Most batches of an evaluation.", 1)

    # Several processes.
    string("coordinator_address", None, "HOST:PORT of process 0, where the cluster is not detected by itself.")
    integer("num_processes", None, "Number of processes.", 1)
    integer("process_id", None, "Number of this process, from 0.", 0)
