"""The model's configuration: named sizes, Google's bert_config.json and Hugging Face's config.json."""

import dataclasses
import json
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from input_pipeline import files
from input_pipeline.errors import UserError

# (layers, hidden size): Devlin et al., 2018, section 3, and the small models of Turc et al., 2019.
SIZES: Mapping[str, tuple[int, int]] = types.MappingProxyType(
    {
        "tiny": (2, 128),
        "mini": (4, 256),
        "small": (4, 512),
        "medium": (8, 512),
        "base": (12, 768),
        "large": (24, 1024),
    }
)

VOCAB_ALIGNMENT = 128

# No sizes of a model that could exist: beyond them the compiler's own arithmetic overflows, which ends the process.
_MOST = 2**24
_MOST_LAYERS = 2**12

ATTENTION_KINDS = ("bidirectional", "left_to_right")

# "gelu" is the erf form, as in the paper and in Hugging Face; Google's TensorFlow 1 code computes it by the tanh form,
# which has names of its own here.
ACTIVATIONS = ("gelu", "gelu_new", "gelu_tanh", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh", "linear")

# Settings of other models and of Hugging Face's variants of BERT: ignoring them would silently give another network.
_ONLY_SUPPORTED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "directionality": "bidi",
}


# Keys that say nothing about the network, or are read elsewhere: no news that they are ignored.
_OTHERS_BUSINESS = {
    *("embedding_size", "bert_jax_hidden_act", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    *("_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype", "use_cache", "pad_token_id"),
    *("gradient_checkpointing", "output_hidden_states", "output_attentions", "output_past"),
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shapes and constants of a BERT model, under the names of Google's bert_config.json.

    Attributes:
        vocab_size: number of vocabulary entries, without the padding rows that only exist in memory.
        hidden_size: width of the hidden states; a multiple of num_attention_heads.
        hidden_act: one of ACTIVATIONS.
        hidden_dropout_prob, attention_probs_dropout_prob: in [0, 1).
        max_position_embeddings: longest sequence, in tokens.
        type_vocab_size: number of segment ids.
        initializer_range: standard deviation of the truncated normal that kernels and embeddings start from.
        layer_norm_eps: epsilon inside the root of every LayerNorm.
        attention: "bidirectional", or "left_to_right" for the ablation of the paper's section 5.1.

    Raises:
        UserError: a value of the wrong type or range; the message names the key and the value.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    attention: str = "bidirectional"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            number = field.type is not str and isinstance(value, int | float) and not isinstance(value, bool)
            if field.type is int and not (number and isinstance(value, int) and value > 0):
                raise UserError(f"{field.name} must be a positive whole number, not {value!r}")
            most = _MOST_LAYERS if field.name == "num_hidden_layers" else _MOST
            if field.type is int and value > most:
                raise UserError(f"{field.name} must be at most {most}, not {value!r}")
            if field.name.endswith("dropout_prob") and not (number and 0 <= value < 1):
                raise UserError(f"{field.name} must be a number in [0, 1), not {value!r}")
            if field.name in ("initializer_range", "layer_norm_eps") and not (number and 0 < value < 1):
                raise UserError(f"{field.name} must be a number between 0 and 1, not {value!r}")
        for name, allowed in (("hidden_act", ACTIVATIONS), ("attention", ATTENTION_KINDS)):
            if getattr(self, name) not in allowed:
                raise UserError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} must be a multiple of num_attention_heads {self.num_attention_heads}"
            )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word embedding in memory: vocab_size rounded up so that any mesh can split them."""
        return -(-self.vocab_size // VOCAB_ALIGNMENT) * VOCAB_ALIGNMENT

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def named(cls, size: str, **overrides: Any) -> "BertConfig":
        """The configuration of a named size: hidden/64 heads, a feed-forward layer of 4 x hidden.

        Raises:
            UserError: the size is not one of SIZES.
        """
        if size not in SIZES:
            raise UserError(f"--model must be one of {', '.join(SIZES)}, not {size!r}")
        layers, hidden = SIZES[size]
        sizes = {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 64,
            "intermediate_size": 4 * hidden,
        }
        return cls(**(sizes | overrides))

    @classmethod
    def from_json(cls, text: str, source: str, message: Callable[[str], None] = logging.info) -> "BertConfig":
        """Reads the text of Google's bert_config.json or Hugging Face's config.json.

        Missing keys take the defaults of whoever wrote the file; they differ in one: Google's code has
        type_vocab_size 16, Hugging Face's 2. vocab_size has no default in Google's.

        Args:
            text: a JSON object.
            source: the file's name, for errors and messages.
            message: takes one line for the keys that are ignored and one for a default worth knowing.

        Raises:
            UserError: not a JSON object, a bad value, or a setting that this model cannot honour.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{source}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
        except RecursionError:
            raise UserError(f"{source}: not JSON: nested too deeply") from None
        except ValueError:  # of the conversion to int
            raise UserError(f"{source}: not JSON: a number has too many digits") from None
        if not isinstance(values, dict):
            raise UserError(f"{source}: a JSON object of settings is needed, not a {type(values).__name__}")
        values = {key: value for key, value in values.items() if value is not None}
        for key, supported in _ONLY_SUPPORTED.items():
            if values.get(key, supported) != supported:
                raise UserError(f"{source}: {key} {values[key]!r} is not supported, only {supported!r}")
        if values.get("embedding_size", values.get("hidden_size")) != values.get("hidden_size"):
            raise UserError(f"{source}: embedding_size {values['embedding_size']!r} must be equal to hidden_size")

        classes = values.get("architectures")
        classes = classes if isinstance(classes, list) and all(isinstance(name, str) for name in classes) else []
        if classes and "model_type" not in values and not any(name.startswith("Bert") for name in classes):
            raise UserError(f"{source}: architectures {', '.join(classes)} is not supported, only those of BERT")
        hugging_face = "model_type" in values or "architectures" in values or os.path.basename(source) == "config.json"
        if "vocab_size" not in values and not hugging_face:
            raise UserError(f"{source}: the key vocab_size is missing")
        known = {field.name for field in dataclasses.fields(cls)}
        ignored = sorted(values.keys() - known - _ONLY_SUPPORTED.keys() - _OTHERS_BUSINESS)
        if ignored:
            message(f"{source}: ignored keys {', '.join(ignored)}")
        settings = {key: value for key, value in values.items() if key in known}
        if "type_vocab_size" not in settings:
            settings["type_vocab_size"] = 2 if hugging_face else 16
            message(
                f"{source}: no type_vocab_size, {settings['type_vocab_size']} is the default of "
                f"{'Hugging Face' if hugging_face else 'Google'}'s BertConfig"
            )
        try:
            return cls(**settings)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None

    @classmethod
    def from_file(
        cls, path: str, flag: str = "--bert_config_file", message: Callable[[str], None] = logging.info
    ) -> "BertConfig":
        """Reads a configuration file, local or remote; see from_json. The flag is named when it cannot be read."""
        return cls.from_json(files.read_text(path, flag), str(path), message)

    def to_json(self) -> str:
        """Google's keys, sorted; layer_norm_eps and attention only where they differ from Google's fixed values."""
        values = dataclasses.asdict(self)
        for field in dataclasses.fields(self):
            if field.name in ("layer_norm_eps", "attention") and values[field.name] == field.default:
                del values[field.name]
        return json.dumps(values, indent=2, sort_keys=True) + "\n"


def config_from_flags(
    flags: Any,
    default_size: str,
    vocab_size: int | None = None,
    vocab_source: str = "the vocabulary",
    message: Callable[[str], None] = logging.info,
) -> BertConfig:
    """The configuration that --bert_config_file or --model asks for, with the flags of single settings on top.

    Args:
        flags: has the attributes model, bert_config_file, hidden_act, hidden_dropout_prob,
            attention_probs_dropout_prob, attention and max_position_embeddings; None stands for "not given".
        default_size: one of SIZES, for when neither file nor size is given.
        vocab_size: number of entries of the vocabulary in use: that of a named size, while a file's own vocab_size
            may be larger.
        vocab_source: where that vocabulary is from, for errors.
        message: takes lines for the log.

    Raises:
        UserError: both a file and a size, a bad value, or a vocabulary larger than the file's vocab_size.
    """
    if flags.bert_config_file and flags.model:
        raise UserError(f"--bert_config_file and --model={flags.model} exclude each other: give one of them")
    if flags.bert_config_file:
        config = BertConfig.from_file(flags.bert_config_file, message=message)
        if vocab_size and vocab_size > config.vocab_size:
            raise UserError(
                f"{vocab_source} has {vocab_size} entries, more than the vocab_size {config.vocab_size} "
                f"of {flags.bert_config_file}"
            )
        if vocab_size and vocab_size < config.vocab_size:
            message(
                f"{vocab_source} has {vocab_size} entries, vocab_size is {config.vocab_size}: the rest stays unused"
            )
    else:
        config = BertConfig.named(flags.model or default_size, **({"vocab_size": vocab_size} if vocab_size else {}))
    names = ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "attention")
    names += ("max_position_embeddings",)
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    try:
        return dataclasses.replace(config, **given)
    except UserError as error:
        raise UserError(f"--{error}") from None


def activation(name: str) -> Callable:
    """The elementwise function of a hidden_act name, from array to array of the same shape and dtype.

    Raises:
        UserError: the name is not one of ACTIVATIONS.
    """
    import jax  # here, so that reading a configuration needs no JAX

    from bert_jax import gelu

    if name not in ACTIVATIONS:
        raise UserError(f"hidden_act must be one of {', '.join(ACTIVATIONS)}, not {name!r}")
    return {
        "gelu": gelu.gelu,
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
        "swish": jax.nn.silu,
        "tanh": jax.numpy.tanh,
        "linear": lambda x: x,
    }.get(name, gelu.gelu_tanh)
