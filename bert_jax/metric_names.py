"""The names under which a run reports its numbers, and how each is shown to people.

Files carry these names and unrounded values; titles and rounding are for the terminal and the report only.
"""

import dataclasses
import re
import types
from collections.abc import Mapping

_OF_SQUAD = re.compile("((HasAns|NoAns|best)_)?(exact|exact_match|f1)")


@dataclasses.dataclass(frozen=True)
class Metric:
    """How one number is shown.

    Attributes:
        title: what people call it.
        kind: "loss" (nats), "share" (in [0, 1], shown in percent), "rate", "seconds", "bytes", "count" or
            "number".
        smooth: whether it is noisy from step to step, so that a curve of it is easier to read when smoothed.
    """

    title: str
    kind: str = "number"
    smooth: bool = True


# In the order in which they are shown. Training metrics are those of the batch, before the update of the step.
METRICS: Mapping[str, Metric] = types.MappingProxyType(
    {
        "masked_lm_loss": Metric("masked-LM loss", "loss"),
        "loss": Metric("loss", "loss"),
        "masked_lm_accuracy": Metric("masked-LM accuracy", "share"),
        "perplexity": Metric("perplexity"),
        "unigram_loss": Metric("unigram loss", "loss"),  # predicting by frequency in the training text
        "next_sentence_loss": Metric("next-sentence loss", "loss"),
        "next_sentence_accuracy": Metric("next-sentence accuracy", "share"),
        "matthews_correlation": Metric("Matthews' correlation"),
        "f1": Metric("F1", "share"),
        "precision": Metric("precision", "share"),
        "recall": Metric("recall", "share"),
        "f1_macro": Metric("macro F1", "share"),
        "f1_micro": Metric("micro F1", "share"),
        "exact_match": Metric("exact match", "share"),
        "exact": Metric("exact match", "share"),
        "HasAns_exact": Metric("exact match where there is an answer", "share"),
        "HasAns_f1": Metric("F1 where there is an answer", "share"),
        "NoAns_exact": Metric("right where there is none", "share"),
        "NoAns_f1": Metric("F1 where there is none", "share"),
        "best_exact": Metric("exact match with the best threshold", "share"),
        "best_exact_thresh": Metric("threshold for exact match"),
        "best_f1": Metric("F1 with the best threshold", "share"),
        "best_f1_thresh": Metric("threshold for F1"),
        "accuracy": Metric("accuracy", "share"),
        "pearson": Metric("Pearson's correlation"),
        "spearman": Metric("Spearman's correlation"),
        "mean_squared_error": Metric("mean squared error"),
        "learning_rate": Metric("learning rate", smooth=False),
        "gradient_norm": Metric("gradient norm"),  # before clipping
        "examples_per_second": Metric("examples/s", "rate"),
        "tokens_per_second": Metric("tokens/s", "rate"),
        "seconds_per_step": Metric("seconds a step", "seconds"),
        "step_seconds_p50": Metric("median of a step", "seconds"),
        "step_seconds_p90": Metric("90% of steps within", "seconds"),
        "step_seconds_max": Metric("longest step", "seconds"),
        "mfu": Metric("MFU", "share"),
        "memory_peak_bytes": Metric("peak memory of a device", "bytes", smooth=False),
        "input_wait_fraction": Metric("time waiting for input", "share"),
        "examples": Metric("examples", "count"),
        "total": Metric("questions", "count"),
        "masked_positions": Metric("masked positions", "count"),
    }
)


def metric(name: str) -> Metric:
    """The entry of METRICS, or one made from the name: "f1_PER" is an "f1"."""
    known = name
    while known and known not in METRICS:
        known = known.rpartition("_")[0]
    if not known:
        return Metric(name.replace("_", " "))
    rest = name.removeprefix(known).replace("_", " ")
    return dataclasses.replace(METRICS[known], title=METRICS[known].title + rest)


def as_shares(metrics: Mapping[str, object]) -> dict[str, object]:
    """Metrics with all shares in [0, 1]: those of SQuAD are percentages, as its official program has them."""
    if not ("exact" in metrics or "exact_match" in metrics):
        return dict(metrics)
    return {
        name: value / 100 if is_number(value) and _OF_SQUAD.fullmatch(name) else value
        for name, value in metrics.items()
    }


def numbers_in_order(line: Mapping[str, object]) -> list[str]:
    """The names of the numbers in `line`, in the order of METRICS; a task's own metrics come last."""
    places = {name: place for place, name in enumerate(METRICS)}
    names = (name for name, value in line.items() if is_number(value))
    return sorted(names, key=lambda name: places.get(name, len(places)))


def metrics_text(metrics: Mapping[str, object]) -> str:
    """All numbers in one line, such as "loss 0.4058, accuracy 82.8%, examples 872"."""
    metrics = as_shares(metrics)
    undefined = [f"{metric(name).title} is not defined" for name, value in metrics.items() if value is None]
    shown = [f"{metric(name).title} {format_value(name, metrics[name])}" for name in numbers_in_order(metrics)]
    return ", ".join(shown + undefined)


def is_number(value: object) -> bool:
    """Whether `value` can be a point of a curve."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def format_value(name: str, value: object) -> str:
    """`value` of the metric `name` as people read it, such as "14.1%", "5.9312" or "1,204"."""
    if value is None:
        return "not finite"
    if not is_number(value):
        return str(value)
    kind = metric(name).kind
    if kind == "share":
        return f"{100 * value:.1f}%"
    if kind == "loss":
        return f"{value:.4f}"
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "bytes":
        return f"{value / 2**30:.2f} GiB"
    if kind == "rate":
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,.0f}" if isinstance(value, int) else f"{value:.4g}"


def format_seconds(seconds: float) -> str:
    """A duration as "7 s", "3:05", "1:02:03" or "2 d 01:02:03"."""
    seconds = max(round(seconds), 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days} d {hours % 24:02d}:{minutes % 60:02d}:{seconds % 60:02d}"
    if hours:
        return f"{hours}:{minutes % 60:02d}:{seconds % 60:02d}"
    return f"{minutes}:{seconds % 60:02d}" if minutes else f"{seconds} s"
