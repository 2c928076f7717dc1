"""Text -> tokens -> sentence pairs -> masked batches, without any dependency on the model."""
