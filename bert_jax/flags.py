"""Every flag of the command line, by what it is about. Names are Google's where Google has one."""

from absl import flags

from bert_jax import task_flags
from bert_jax.flag_definer import FlagDefiner

MODES = {
    "pretrain": "masked LM and next-sentence prediction from text or a prepared store",
    "prepare": "text -> token store (and a vocabulary, where none is given)",
    "tokenize": "text -> JSON lines of tokens and ids",
    "plan": "memory, speed and traffic of pretraining on devices that need not be there (--topology)",
    "describe": "parameters by part, FLOPs and memory of a model",
    "fill_mask": "the most probable words for each [MASK] of a text; whether one sentence follows another",
    "extract": "a file of lines -> vectors of lines or tokens",
    "finetune": "trains a model on a task (--task_name), evaluates it, predicts",
    "evaluate": "metrics of a fine-tuned model on labelled data, or of a pretrained one on text",
    "predict": "answers of a fine-tuned model to new examples",
    "cluster": "documents -> clusters, with their words, representatives and a picture",
    "export": "any checkpoint -> Hugging Face, Google's TF1 or StableHLO",
}

TRAINING_MODES = ("pretrain", "finetune")
# Of each two at most one may be given.
ALTERNATIVES = (
    ("num_train_steps", "num_train_epochs"),
    ("num_warmup_steps", "warmup_proportion"),
    ("init_checkpoint", "restore_from"),
    ("model", "bert_config_file"),
    ("vocab_file", "vocab_size"),
)
# Modes that run steps on a device, or compile for minutes.
COMPUTING_MODES = ("plan", "pretrain", "fill_mask", "extract", "finetune", "evaluate", "predict", "cluster", "export")


def define(values: flags.FlagValues) -> None:
    """Defines all flags on `values`; keyed to this module, so that --help lists exactly these."""
    define_flag = FlagDefiner(values, __name__)
    string, comma_list, boolean = define_flag.string, define_flag.comma_list, define_flag.boolean
    enum, integer, number = define_flag.enum, define_flag.integer, define_flag.number

    enum("mode", None, list(MODES), "What to do: " + "; ".join(f"{mode}: {text}" for mode, text in MODES.items()) + ".")

    comma_list(
        "needs",
        None,
        "Flags that must be given to train: a file of flags names by it what it leaves to the command line.",
    )

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
        "Share held out to evaluate on. pretrain: of the documents, chosen by a hash of the document; default 0.02. "
        "finetune: of the training examples, drawn at random, where there are no others to evaluate on; default none.",
        0.0,
        1.0,
    )
    string(
        "output_dir",
        None,
        "Folder for everything that is written; default runs/pretrain, or runs/TASK for finetune. evaluate, predict: "
        "default the folder evaluate or predict in that of the model.",
    )
    string(
        "output_file",
        None,
        "tokenize, fill_mask: file for JSON lines; default standard output. extract: file for the vectors, whose "
        "ending (.npy, .npz, .jsonl, .tfrecord) says the format.",
    )
    boolean("overwrite", False, "export, extract, fill_mask, cluster: write over what an earlier run left.")
    string(
        "text_field",
        "text",
        "Field that holds the text in JSON lines and TFDS data sets; finetune, evaluate, predict: name of the column "
        "or field with the (first) text, or the column's number from 1.",
    )
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
        module_name=__name__,
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

    task_flags.define(define_flag)

    # Sentence pairs and masks.
    integer(
        "max_seq_length",
        None,
        "Most tokens in a sequence, [CLS] and [SEP] included; default 128, 384 for squad, all positions for extract "
        "and fill_mask. evaluate, predict: default as in training.",
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
    integer(
        "train_batch_size",
        None,
        "Examples in an update, over all devices; default 256 in pretrain, the paper's 16 to 48 of a task in finetune.",
        1,
    )
    integer(
        "eval_batch_size",
        None,
        "Examples in a step without training, over all devices; default that of training, or what suits the devices.",
        1,
    )
    number(
        "learning_rate",
        None,
        "Peak learning rate; default 1e-4 in pretrain, 2e-5 in finetune, 5e-5 for squad and tagging.",
        0.0,
        1e3,
    )
    integer("num_train_steps", None, "Updates; or give --num_train_epochs.", 1)
    number(
        "num_train_epochs",
        None,
        "Passes over the data, instead of --num_train_steps; default 3 in finetune, 2 for squad 2.0.",
        0.0,
        1e6,
    )
    integer("num_warmup_steps", None, "Updates of linear warm-up; default 10,000 but at most 10% of the steps.", 0)
    number("warmup_proportion", None, "Warm-up as a share of the steps, instead of --num_warmup_steps.", 0.0, 1.0)
    number(
        "lr_decay_power",
        1.0,
        "The rate falls with the share of the steps that is left to this power: 1 is linear, 0.5 that of NVIDIA's "
        "pretraining with LAMB, 0 constant.",
        0.0,
        10.0,
    )
    boolean(
        "restart_schedule",
        False,
        "pretrain: warm-up and decay begin anew at the step of --restore_from, as in the second phase of LAMB; False: "
        "they are those of all updates.",
    )
    enum(
        "optimizer",
        None,
        ["bert_adam", "adamw", "lamb"],
        "bert_adam is Google's Adam, which has no bias correction: the default of pretrain. adamw has it: the default "
        "of finetune, where few steps without it are unstable.",
    )
    enum(
        "trust_ratio",
        "all",
        ["all", "decayed"],
        "lamb: the arrays whose update is scaled to their own norm: all, as in the paper, or those that decay, as in "
        "NVIDIA's pretraining. --clip_norm=0 is the paper's, 1 NVIDIA's.",
    )
    number("weight_decay", 0.01, "Decoupled decay of kernels and embeddings.", 0.0, 1e3)
    number("clip_norm", 1.0, "Largest global norm of the gradient; 0 does not clip.", 0.0)
    integer("gradient_accumulation_steps", 1, "Parts in which a batch is computed one after the other.", 1)
    integer(
        "seed",
        12345,
        "Seed of new parameters, order, pairs, masks and dropout, in finetune also of --eval_fraction.",
        0,
        2**31 - 1,
    )
    enum("precision", "f32", ["f32", "bf16"], "Dtype of the computation; parameters and losses are f32.")
    enum(
        "matmul_precision",
        None,
        ["default", "high", "highest"],
        "Precision of f32 matrix products on TPU and GPU; default: highest with f32, the device's default with bf16.",
    )
    string(
        "mesh",
        "",
        "Sizes of the mesh axes, such as data=4,tensor=2; axes: data, fsdp, sequence, tensor; one may be -1, the rest. "
        "Default all data.",
    )
    string(
        "dcn_mesh",
        "",
        "Several slices (or hosts of GPUs): how many lie on each axis of the mesh, such as data=2 or fsdp=2. Default "
        "as many on data as can.",
    )
    string(
        "topology",
        None,
        "plan: the devices, such as v4:4x4x4, v5e:4x4, v5p:4x4x4, v6e:4x4, of two slices 2xv5e:4x4, or cpu or gpu for "
        "those of this machine.",
    )
    boolean(
        "plan_search",
        False,
        "plan: search for the mesh, the batch of a device and --remat with the most sequences a second that fit; those "
        "that are given are kept, --train_batch_size by --gradient_accumulation_steps.",
    )
    boolean(
        "shard_optimizer",
        True,
        "Parameters and optimizer state are cut over the data axis between updates: less memory and less work; False: "
        "each device of the axis has all of them.",
    )
    enum(
        "gradient_reduction",
        "f32",
        ["f32", "bf16"],
        "pretrain: dtype in which the gradients of the data axis are added up; bf16 moves half as much.",
    )
    enum(
        "attention_kernel",
        "auto",
        ["auto", "xla", "pallas", "cudnn"],
        "pretrain: pallas is a kernel of our own for TPUs, cudnn NVIDIA's for GPUs (without dropout on attention), xla "
        "what the compiler makes; auto: pallas on TPU from length 256 on, else xla.",
    )
    enum("remat", "none", ["none", "dots", "full"], "What is computed again in the backward pass to save memory.")
    boolean("scan_layers", False, "One compiled layer, scanned: quicker to compile, slower to run.")

    # Checkpoints, logs, evaluation.
    integer(
        "save_checkpoints_steps",
        None,
        "Updates between checkpoints; default 1,000 in pretrain, 500 in finetune. The last step is always saved.",
        1,
    )
    integer("keep_checkpoints", 3, "How many checkpoints stay.", 1)
    string("restore_from", None, "pretrain: another run to continue: its parameters, optimizer state and step.")
    integer("log_every_steps", None, "Updates between logged steps; default a hundredth of all, at most 100.", 1)
    string(
        "profile_steps",
        None,
        "Updates to trace for XProf and TensorBoard, such as 100:110; the trace is written below --output_dir.",
    )
    integer(
        "eval_every_steps",
        None,
        "Updates between evaluations; default only at the end (pretrain: see --evaluate_at_end).",
        1,
    )
    boolean("evaluate_at_end", True, "pretrain: evaluate on the held-out text when training is done.")
    integer("max_eval_steps", None, "pretrain: most batches of an evaluation.", 1)

    # Several processes.
    string(
        "coordinator_address",
        None,
        "HOST:PORT of process 0. Default for this and the next two: what Slurm, Open MPI or a Cloud TPU say.",
    )
    integer("num_processes", None, "Number of processes; 1 joins no others, whatever the environment says.", 1)
    integer("process_id", None, "Number of this process, from 0.", 0)
