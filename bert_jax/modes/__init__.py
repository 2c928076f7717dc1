"""One module a value of --mode, each with a function `run(flags)`; pretrain_* are parts of pretrain."""
