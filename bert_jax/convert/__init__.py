"""Reading and writing the checkpoints of other BERT programs."""
