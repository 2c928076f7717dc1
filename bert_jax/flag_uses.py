"""Which flags have an effect in which modes, and what is said about a flag that has none."""

from absl import flags as absl_flags

_TRAINING = "pretrain finetune"
_TASKS = "finetune evaluate predict"
_USES = "fill_mask extract evaluate predict cluster"  # a model, by batches of text or examples
_COMPUTING = f"pretrain finetune export {_USES}"
_TEXT = "pretrain prepare evaluate"  # as documents

# A row: modes, and the flags that they read; each flag stands in one row. A mode that refuses a flag counts too.
_TABLE = (
    (_TRAINING, "needs"),
    # Input and output.
    (f"pretrain prepare tokenize finetune {_USES}", "text_field"),
    ("pretrain prepare tokenize fill_mask extract evaluate cluster finetune", "input_file"),
    ("pretrain evaluate finetune", "eval_input_file max_eval_steps"),
    (_TRAINING, "eval_fraction restore_from evaluate_at_end"),
    ("pretrain prepare finetune evaluate predict cluster export", "output_dir"),
    ("tokenize fill_mask extract", "output_file"),
    ("export extract fill_mask cluster", "overwrite"),
    (_TEXT, "sentence_splitting"),
    (f"pretrain prepare {_TASKS}", "num_workers"),
    ("prepare", "runner beam_options"),
    # Vocabulary and model.
    (f"prepare tokenize describe {_COMPUTING}", "vocab_file do_lower_case init_checkpoint allow_pickled_weights"),
    ("pretrain prepare", "vocab_size vocab_kind"),
    (f"{_TRAINING} describe", "model hidden_dropout_prob attention_probs_dropout_prob attention"),
    (f"{_COMPUTING} describe", "bert_config_file max_position_embeddings hidden_act"),
    (_COMPUTING, "extend_positions"),
    # Use of a model.
    ("fill_mask", "text output_format top_k"),
    ("extract cluster", "layers layer_combination pooling"),
    ("cluster", "num_clusters documents"),
    ("export", "format platforms"),
    ("plan", "topology plan_search"),
    # Tasks.
    (_TASKS, "task_name data_dir text_pair_field id_field labels language version_2_with_negative"),
    (_TASKS, "null_score_diff_threshold doc_stride max_query_length n_best_size max_answer_length document_context"),
    (f"{_TASKS} cluster", "label_field"),
    ("finetune evaluate", "eval_file positive_label strict_entities"),
    ("finetune predict", "predict_file"),
    ("finetune", "train_file train_language num_runs grid_search layer_lr_decay reinit_layers allow_new_pooler"),
    ("finetune", "freeze_encoder head_features head_lstm"),
    # Sentence pairs and masks.
    (f"{_TRAINING} describe {_USES}", "max_seq_length"),
    ("pretrain evaluate describe", "max_predictions_per_seq masked_lm_prob"),
    ("pretrain evaluate", "masking_split whole_word_masking short_seq_prob next_sentence_prediction"),
    ("pretrain evaluate", "sampling_exponent"),
    (_TRAINING, "shuffle"),
    # Training, and what it leaves.
    (_TRAINING, "train_batch_size learning_rate num_train_steps num_train_epochs num_warmup_steps warmup_proportion"),
    (_TRAINING, "lr_decay_power optimizer trust_ratio weight_decay clip_norm gradient_accumulation_steps"),
    (_TRAINING, "remat scan_layers shard_optimizer"),
    ("pretrain", "gradient_reduction attention_kernel"),
    (_TRAINING, "save_checkpoints_steps keep_checkpoints log_every_steps eval_every_steps profile_steps"),
    ("pretrain", "restart_schedule"),
    (f"{_TRAINING} cluster", "seed"),
    (f"{_TRAINING} {_USES}", "eval_batch_size mesh dcn_mesh"),
    # Devices and processes.
    (_COMPUTING, "precision matmul_precision coordinator_address num_processes process_id"),
)
# A plan is given the flags of the run that it is for, whether they change the step or not.
_PLANNED = {"pretrain": "pretrain plan"}
ALWAYS = ("mode", "help", "h", "version")
MODES_OF = {
    flag: tuple(" ".join(_PLANNED.get(mode, mode) for mode in modes.split()).split())
    for modes, flags in _TABLE
    for flag in flags.split()
}


def drop_unused(values: absl_flags.FlagValues) -> list[str]:
    """Sets flags that were given, on the command line or in a --flagfile, and have no effect in the mode, back.

    They are no mistakes, since scripts give several modes the same flags.

    Returns:
        A line for each of them.
    """
    lines = []
    for name in values:
        if values[name].present and name not in ALWAYS and values.mode not in MODES_OF[name]:
            lines.append(f"--{name} has no effect in --mode={values.mode}")
            values[name].unparse()
    return lines
